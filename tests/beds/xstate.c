/* Lets a user-mode kernel run on processors that have more registers than it knows of; preloaded by uml.py.
 *
 * A kernel takes the extended registers of a traced process (NT_X86_XSTATE) only all at once: PTRACE_SETREGSET fails
 * with EFAULT when the set is shorter than what the processor has. User-mode Linux 6.1 sends 2,696 bytes, and a
 * processor with AMX has 11,008. What was refused so is sent again here with the rest that it lacks, as the traced
 * process has it now.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

enum { GET_REGISTERS = 0x4204, SET_REGISTERS = 0x4205, EXTENDED = 0x202 };

static long (*next)(int request, int pid, void *what, void *data);
/* Not on the stack: a kernel's is small. One thread of a kernel traces all its processes. */
static char all[1 << 16];

__attribute__((constructor)) static void find_next(void)
{
	next = dlsym(RTLD_NEXT, "ptrace");
}

long ptrace(int request, int pid, void *what, void *data)
{
	long result = next(request, pid, what, data);
	if (result != -1 || errno != EFAULT || request != SET_REGISTERS || what != (void *)EXTENDED)
		return result;
	struct iovec *sent = data, completed = { all, sizeof all };
	if (next(GET_REGISTERS, pid, what, &completed) == -1)
		return -1;
	if (sent->iov_len >= completed.iov_len) {
		errno = EFAULT;
		return -1;
	}
	memcpy(all, sent->iov_base, sent->iov_len);
	return next(request, pid, what, &completed);
}
