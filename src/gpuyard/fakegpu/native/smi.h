/* What the files of nvidia-smi share: one whole reading of the machine, and the GPUs of it that were asked for.
 *
 * Place in the flow: state file ─view─▶ **nvidia-smi** ─▶ a person, other people's scripts.
 * Invariant: everything one run prints (or one turn of -l) comes from one reading. The program needs neither a C library
 * nor any file but the state; words, columns and exit codes are those scripts expect of NVIDIA's program.
 */
#ifndef GPUYARD_SMI_H
#define GPUYARD_SMI_H

#include <stddef.h>
#include <stdio.h>

#include "view.h"

enum exit_code {
    EXIT_OK = 0,
    EXIT_BAD_ARGUMENT = 2,
    EXIT_NOT_SUPPORTED = 3,
    EXIT_NOT_FOUND = 6,
    EXIT_NO_DRIVER = 9,
    EXIT_LOST = 15,
    EXIT_VERSION = 18,
    EXIT_OTHER = 255
};

struct smi_gpu {
    unsigned index; /* Among the GPUs this process sees. */
    const struct gy_device *device;
    const struct gy_product *product;
};

struct smi {
    struct gy_view view;
    char *body; /* A private copy, so that nothing changes while it is printed. */
    struct gy_reading reading;
    unsigned visible; /* GPUs this process sees, */
    unsigned count;   /* and those of them that were asked for and answer. */
    struct smi_gpu *gpus;
    unsigned lost;
    FILE *out;
    FILE *complaints; /* Where lost GPUs are named: not into XML. */
};

/* Take a fresh reading and choose the GPUs of `ids` (all when NULL). Lost GPUs are named, left out and counted. */
enum exit_code smi_take(struct smi *smi, const char *ids);

struct csv {
    int header, units;
};

/* The queries are numbered from zero; past the last the option is NULL. */
const char *smi_query_option(int query);
enum exit_code smi_query(struct smi *smi, int query, const char *fields, struct csv csv);
void smi_query_help(int query, FILE *out);

void smi_table(struct smi *smi);
void smi_list(struct smi *smi);

/* What -d chooses of the long report; zero is everything. */
unsigned smi_display(const char *words, int *bad);
void smi_report(struct smi *smi, int xml, unsigned display);

/* `groups` are the letters of dmon -s; `date` and `time` stand before each line. */
struct monitor {
    const char *groups;
    int date, time;
};

int smi_known_groups(const char *groups);
void smi_device_monitor(struct smi *smi, int header, const struct monitor *monitor);
void smi_process_monitor(struct smi *smi, int header);
void smi_topology(struct smi *smi);
void smi_links(struct smi *smi);

void smi_mig_profiles(struct smi *smi);
void smi_mig_instances(struct smi *smi);
void smi_mig_compute_instances(struct smi *smi);

/* Shared words. */
const char *smi_now(char *text, size_t size, const char *format);
unsigned long long smi_mib(uint64_t bytes);
uint32_t smi_position(const struct smi *smi, const struct smi_gpu *gpu);
int smi_shows_mig(struct smi *smi, uint32_t mig);
int smi_shows_process(const struct smi *smi, const struct smi_gpu *gpu, uint32_t process);
/* Where a GPU's processes lie, and how many of them are shown. */
uint32_t smi_processes(const struct smi *smi, const struct smi_gpu *gpu, struct gy_span *span);

#endif
