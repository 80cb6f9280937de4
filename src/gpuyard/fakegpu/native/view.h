/* The state file as a process sees it: mapped once, filtered by NVIDIA_VISIBLE_DEVICES.
 *
 * Place in the flow: state file ─**view**─▶ nvml*.c, smi*.c.
 * A device is seen if NVIDIA_VISIBLE_DEVICES names it; in a container that was given devices it must be one of those, too.
 * Invariant: what is copied between gy_begin and a true gy_still is one whole reading, and costs no system call while
 * the file stays the same.
 */
#ifndef GPUYARD_VIEW_H
#define GPUYARD_VIEW_H

#include <stddef.h>

#include "state.h"

enum { GY_PATH = 4096, GY_VISIBLE = 32768, GY_WHY = GY_PATH + 160 };

enum gy_status {
    GY_OK = 0,
    GY_NO_STATE,      /* There is no state file: no driver is loaded. */
    GY_OTHER_VERSION, /* The file is of another version of gpuyard. */
    GY_BROKEN         /* The file is no state file. */
};

struct gy_view {
    const struct gy_header *header;
    size_t size;
    int hidden; /* NVIDIA_VISIBLE_DEVICES asks for no driver at all. */
    char path[GY_PATH];
    char visible[GY_VISIBLE];
    char granted[GY_VISIBLE]; /* What a container was given: "all", or ids, whatever its variables say. */
    char why[GY_WHY]; /* What is wrong, in words, when a status is not GY_OK. */
};

/* One reading. The pointers lead into the mapped file: what they show is only certain once gy_still says so. Until then
 * only the counts here are safe to walk by, because they never exceed what the file holds. */
struct gy_reading {
    uint64_t number;
    uint32_t product_count, device_count, mig_count, process_count;
    const struct gy_machine *machine;
    const struct gy_product *products;
    const struct gy_device *devices;
    const struct gy_mig *migs;
    const struct gy_process *processes;
};

enum gy_status gy_open(struct gy_view *view);
void gy_close(struct gy_view *view);

/* Follow a file that was replaced; cheap when it was not. */
enum gy_status gy_follow(struct gy_view *view);

struct gy_reading gy_begin(const struct gy_view *view);
int gy_still(const struct gy_view *view, const struct gy_reading *reading);

/* Whether the view shows the device or the MIG instance; a device shows when one of its instances does. */
int gy_shows_device(const struct gy_view *view, const struct gy_reading *reading, uint32_t device);
int gy_shows_mig(const struct gy_view *view, const struct gy_reading *reading, uint32_t mig);
/* Whether the view shows a process of a device it shows: not one of an instance it does not show. */
int gy_shows_process(const struct gy_view *view, const struct gy_reading *reading, uint32_t device, uint32_t process);

/* The part of a list that lies within the counts of the reading. */
struct gy_span {
    uint32_t first, end;
};
struct gy_span gy_migs_of(const struct gy_reading *reading, uint32_t device);
struct gy_span gy_processes_of(const struct gy_reading *reading, uint32_t device);

#endif
