#include "view.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEFAULT_DIRECTORY "/run/gpuyard-fake"
#define GRANTED "/run/gpuyard-fake.granted"

/* ---------------------------------------------------------------------------------------------- opening the file */

/* A container that was given devices has a list of them mounted, which none of its programs can change. */
static void read_grant(struct gy_view *view) {
    int file = open(GRANTED, O_RDONLY | O_CLOEXEC);
    strcpy(view->granted, "all");
    if (file < 0) return;
    ssize_t size = read(file, view->granted, sizeof view->granted - 1);
    close(file);
    view->granted[size < 0 ? 0 : size] = 0;
    view->granted[strcspn(view->granted, "\n")] = 0;
}

static void read_environment(struct gy_view *view) {
    const char *directory = getenv("GPUYARD_FAKE_STATE");
    const char *visible = getenv("NVIDIA_VISIBLE_DEVICES");
    if (!directory || !*directory) directory = DEFAULT_DIRECTORY;
    snprintf(view->path, sizeof view->path, "%s/state", directory);
    snprintf(view->visible, sizeof view->visible, "%s", visible ? visible : "all");
    view->hidden = !*view->visible || !strcmp(view->visible, "void");
}

static int ends_by(uint64_t start, uint64_t count, size_t size, uint64_t end) { return start + count * size <= end; }

static int fits(const struct gy_header *header, size_t size) {
    const uint64_t *body = header->body_offset;
    return ends_by(body[0], 1, header->body_size, size) && ends_by(body[1], 1, header->body_size, size)
           && ends_by(0, 1, sizeof(struct gy_machine), header->products_at)
           && ends_by(header->products_at, header->product_capacity, sizeof(struct gy_product), header->devices_at)
           && ends_by(header->devices_at, header->device_capacity, sizeof(struct gy_device), header->migs_at)
           && ends_by(header->migs_at, header->mig_capacity, sizeof(struct gy_mig), header->processes_at)
           && ends_by(header->processes_at, header->process_capacity, sizeof(struct gy_process), header->body_size);
}

static enum gy_status check(struct gy_view *view, const struct gy_header *header, size_t size) {
    if (memcmp(header->magic, GY_MAGIC, sizeof header->magic)) {
        snprintf(view->why, sizeof view->why, "%s is not a state file of gpuyard", view->path);
        return GY_BROKEN;
    }
    if (header->version != GY_VERSION) {
        snprintf(view->why, sizeof view->why, "%s has version %u of the state file; this program reads version %u",
                 view->path, header->version, GY_VERSION);
        return GY_OTHER_VERSION;
    }
    if (!fits(header, size)) {
        snprintf(view->why, sizeof view->why, "%s is cut short", view->path);
        return GY_BROKEN;
    }
    return GY_OK;
}

static enum gy_status map(struct gy_view *view, const struct gy_header **header, size_t *size) {
    int file = open(view->path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        snprintf(view->why, sizeof view->why, "%s cannot be opened: %.60s", view->path, strerror(errno));
        return GY_NO_STATE;
    }
    off_t length = lseek(file, 0, SEEK_END);
    void *memory = MAP_FAILED;
    if (length >= (off_t)sizeof(struct gy_header)) memory = mmap(NULL, (size_t)length, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) {
        snprintf(view->why, sizeof view->why, "%s is not a state file of gpuyard", view->path);
        return GY_BROKEN;
    }
    enum gy_status status = check(view, memory, (size_t)length);
    if (status != GY_OK) {
        munmap(memory, (size_t)length);
        return status;
    }
    *header = memory;
    *size = (size_t)length;
    return GY_OK;
}

enum gy_status gy_open(struct gy_view *view) {
    read_environment(view);
    read_grant(view);
    if (view->hidden) {
        snprintf(view->why, sizeof view->why, "NVIDIA_VISIBLE_DEVICES is empty or void");
        return GY_NO_STATE;
    }
    return map(view, &view->header, &view->size);
}

void gy_close(struct gy_view *view) {
    if (view->header) munmap((void *)view->header, view->size);
    view->header = NULL;
}

enum gy_status gy_follow(struct gy_view *view) {
    if (!__atomic_load_n(&view->header->replaced, __ATOMIC_ACQUIRE)) return GY_OK;
    const struct gy_header *fresh;
    size_t size;
    enum gy_status status = map(view, &fresh, &size);
    if (status != GY_OK) return status;
    /* The old mapping stays: another thread may be copying from it. It is small, and files are replaced seldom. */
    view->size = size;
    __atomic_store_n(&view->header, fresh, __ATOMIC_RELEASE);
    return GY_OK;
}

/* ------------------------------------------------------------------------------------------------ one whole reading */

static uint32_t at_most(uint32_t count, uint32_t capacity) { return count < capacity ? count : capacity; }

struct gy_reading gy_begin(const struct gy_view *view) {
    const struct gy_header *header = __atomic_load_n(&view->header, __ATOMIC_ACQUIRE);
    struct gy_reading reading;
    reading.number = __atomic_load_n(&header->published, __ATOMIC_ACQUIRE);
    const char *body = (const char *)header + header->body_offset[reading.number % 2];
    reading.machine = (const struct gy_machine *)body;
    reading.products = (const struct gy_product *)(body + header->products_at);
    reading.devices = (const struct gy_device *)(body + header->devices_at);
    reading.migs = (const struct gy_mig *)(body + header->migs_at);
    reading.processes = (const struct gy_process *)(body + header->processes_at);
    reading.product_count = at_most(reading.machine->product_count, header->product_capacity);
    reading.device_count = at_most(reading.machine->device_count, header->device_capacity);
    reading.mig_count = at_most(reading.machine->mig_count, header->mig_capacity);
    reading.process_count = at_most(reading.machine->process_count, header->process_capacity);
    return reading;
}

static struct gy_span within(uint32_t first, uint32_t count, uint32_t all) {
    struct gy_span span = {at_most(first, all), 0};
    span.end = span.first + at_most(count, all - span.first);
    return span;
}

struct gy_span gy_migs_of(const struct gy_reading *reading, uint32_t device) {
    const struct gy_device *one = &reading->devices[device];
    return within(one->first_mig, one->mig_count, reading->mig_count);
}

struct gy_span gy_processes_of(const struct gy_reading *reading, uint32_t device) {
    const struct gy_device *one = &reading->devices[device];
    return within(one->first_process, one->process_count, reading->process_count);
}

int gy_still(const struct gy_view *view, const struct gy_reading *reading) {
    const struct gy_header *header = __atomic_load_n(&view->header, __ATOMIC_RELAXED);
    const char *body = (const char *)reading->machine;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return body == (const char *)header + header->body_offset[reading->number % 2]
           && __atomic_load_n(&header->published, __ATOMIC_RELAXED) == reading->number;
}

/* ------------------------------------------------------------------------------------------- NVIDIA_VISIBLE_DEVICES */

/* Whether one word of the list names the device itself ("0", its UUID) or its MIG instance ("0:1", its UUID). */
static int names(const char *word, size_t length, const struct gy_device *device, const struct gy_mig *mig) {
    char own[32];
    if (mig) {
        if (strlen(mig->uuid) == length && !memcmp(word, mig->uuid, length)) return 1;
        snprintf(own, sizeof own, "%u:%u", device->index, mig->index);
    } else {
        if (strlen(device->uuid) == length && !memcmp(word, device->uuid, length)) return 1;
        snprintf(own, sizeof own, "%u", device->index);
    }
    return strlen(own) == length && !memcmp(word, own, length);
}

static int listed(const char *list, const struct gy_device *device, const struct gy_mig *mig) {
    const char *word = list;
    if (!strcmp(list, "all")) return 1;
    while (*word) {
        size_t length = strcspn(word, ",");
        if (names(word, length, device, mig)) return 1;
        word += length + (word[length] == ',');
    }
    return 0;
}

static int shows_mig(const char *list, const struct gy_reading *reading, uint32_t mig) {
    const struct gy_mig *one = &reading->migs[mig];
    const struct gy_device *device = &reading->devices[one->device];
    return listed(list, device, NULL) || listed(list, device, one);
}

static int shows_device(const char *list, const struct gy_reading *reading, uint32_t device) {
    if (listed(list, &reading->devices[device], NULL)) return 1;
    struct gy_span migs = gy_migs_of(reading, device);
    for (uint32_t i = migs.first; i < migs.end; i++)
        if (listed(list, &reading->devices[device], &reading->migs[i])) return 1;
    return 0;
}

static int shows_all(const struct gy_view *view) {
    return !strcmp(view->visible, "all") && !strcmp(view->granted, "all");
}

int gy_shows_mig(const struct gy_view *view, const struct gy_reading *reading, uint32_t mig) {
    if (shows_all(view)) return 1;
    if (reading->migs[mig].device >= reading->device_count) return 0;
    return shows_mig(view->visible, reading, mig) && shows_mig(view->granted, reading, mig);
}

int gy_shows_process(const struct gy_view *view, const struct gy_reading *reading, uint32_t device, uint32_t process) {
    int32_t instance = reading->processes[process].mig;
    struct gy_span migs = gy_migs_of(reading, device);
    if (instance == GY_NONE || shows_all(view)) return 1;
    for (uint32_t i = migs.first; i < migs.end; i++)
        if ((int32_t)reading->migs[i].index == instance) return gy_shows_mig(view, reading, i);
    return 1;
}

int gy_shows_device(const struct gy_view *view, const struct gy_reading *reading, uint32_t device) {
    if (shows_all(view)) return 1;
    return shows_device(view->visible, reading, device) && shows_device(view->granted, reading, device);
}
