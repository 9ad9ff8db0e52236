import gc

gc.freeze()
gc.set_threshold(50_000, 20, 50)
