/* task.h: the system's facts about a process without its port, and about the right to that. */
#include "darwin_task/task.h"

#include <errno.h>
#include <libproc.h>
#include <mach/machine.h>
#include <string.h>
#include <sys/proc_info.h>
#include <sys/sysctl.h>
#include <unistd.h>

/* sys/proc_info.h is public for macOS; what follows are interfaces that libsystem_kernel exports
 * and xnu's sources declare: bsd/sys/codesign.h, bsd/sys/csr.h. */
extern int csops(pid_t pid, unsigned int operation, void *data, size_t size);
extern int csr_get_active_config(uint32_t *config);
#define CS_OPS_STATUS 0
#define CS_OPS_ENTITLEMENTS_BLOB 7

_Static_assert(sizeof(struct proc_bsdshortinfo) == 64, "proc_bsdshortinfo");
_Static_assert(offsetof(struct proc_bsdshortinfo, pbsi_comm) == 16, "pbsi_comm");
_Static_assert(offsetof(struct proc_bsdshortinfo, pbsi_flags) == 32, "pbsi_flags");
_Static_assert(offsetof(struct proc_bsdshortinfo, pbsi_svuid) == 52, "pbsi_svuid");
_Static_assert(sizeof(struct proc_archinfo) == 8, "proc_archinfo");
_Static_assert(MAXCOMLEN == 16, "MAXCOMLEN");

int machtrace_task_process(int pid, struct machtrace_task_process *process)
{
    memset(process, 0, sizeof *process);
    struct proc_bsdshortinfo info;
    errno = 0;
    /* This one answers for every user's processes. With 1, also for those that have ended. */
    int got = proc_pidinfo(pid, PROC_PIDT_SHORTBSDINFO, 1, &info, sizeof info);
    if (got < (int)sizeof info)
        return errno != 0 ? errno : ESRCH;
    process->parent = (int32_t)info.pbsi_ppid;
    process->user = info.pbsi_uid;
    process->real_user = info.pbsi_ruid;
    process->saved_user = info.pbsi_svuid;
    process->flags = info.pbsi_flags;
    process->status = info.pbsi_status;
    memcpy(process->name, info.pbsi_comm, sizeof process->name - 1);
    int length = proc_pidpath(pid, process->path, sizeof process->path);
    process->path[length > 0 && length < (int)sizeof process->path ? length : 0] = '\0';
    struct proc_archinfo machine;
    if (proc_pidinfo(pid, PROC_PIDARCHINFO, 0, &machine, sizeof machine) ==
        (int)sizeof machine) {
        process->cpu_type = machine.p_cputype;
        process->cpu_subtype = machine.p_cpusubtype;
    }
    process->code_signing_known =
        csops(pid, CS_OPS_STATUS, &process->code_signing, sizeof process->code_signing) == 0;
    if (!process->code_signing_known)
        process->code_signing = 0;
    return 0;
}

static bool has_entitlement(const char *name)
{
    /* Eight bytes of header, big-endian, and a property list. */
    unsigned char blob[65536];
    if (csops(getpid(), CS_OPS_ENTITLEMENTS_BLOB, blob, sizeof blob) != 0)
        return false;
    size_t size = (size_t)blob[4] << 24 | (size_t)blob[5] << 16 | (size_t)blob[6] << 8 | blob[7];
    size_t length = strlen(name);
    for (size_t at = 8; at + length <= size && at + length <= sizeof blob; at++)
        if (memcmp(blob + at, name, length) == 0)
            return true;
    return false;
}

static int32_t number(const char *name)
{
    int32_t value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && size == sizeof value ? value : 0;
}

void machtrace_task_rights(struct machtrace_task_rights *rights)
{
    memset(rights, 0, sizeof *rights);
    rights->user = geteuid();
    rights->integrity_known = csr_get_active_config(&rights->integrity) == 0;
    rights->has_debugger_entitlement = has_entitlement("<key>com.apple.security.cs.debugger</key>");
    rights->is_translated = number("sysctl.proc_translated") == 1;
    rights->address_bits = number("machdep.virtual_address_size");
#if defined(__aarch64__)
    rights->cpu_type = CPU_TYPE_ARM64;
#else
    rights->cpu_type = CPU_TYPE_X86_64;
#endif
}
