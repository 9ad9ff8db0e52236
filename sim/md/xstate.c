/* Preloaded into user-mode Linux 6.1: its buffer for a traced process's extended registers has the
 * size of an older processor's. On one with more of them (AMX) the kernel refuses to set so short
 * a state, and user-mode Linux panics ("ptrace set fp regs failed"). So a short state is laid over
 * the current one and set whole. Every other request passes.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_STATE 65536

static long set_state(pid_t pid, const struct iovec *part)
{
    static __thread char whole[MOST_STATE] __attribute__((aligned(64)));
    struct iovec state = {whole, sizeof whole};

    if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &state) < 0)
        return -1;
    memcpy(whole, part->iov_base, part->iov_len < state.iov_len ? part->iov_len : state.iov_len);
    return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, &state);
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list list;
    va_start(list, request);
    pid_t pid = va_arg(list, pid_t);
    void *address = va_arg(list, void *);
    void *data = va_arg(list, void *);
    va_end(list);

    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE)
        return set_state(pid, data);
    if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
        /* The system call stores the word; the C library's function returns it. */
        long word;
        if (syscall(SYS_ptrace, request, pid, address, &word) < 0)
            return -1;
        errno = 0;
        return word;
    }
    return syscall(SYS_ptrace, request, pid, address, data);
}
