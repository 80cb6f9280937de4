/* One reading, copied whole, and the GPUs that were asked for. */
#include "smi.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static const char NO_DRIVER[] =
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n\n";

static enum exit_code explain(struct smi *smi, enum gy_status status) {
    if (status == GY_OTHER_VERSION) fputs("Failed to initialize NVML: Driver/library version mismatch\n", smi->out);
    else if (status == GY_NO_STATE) fputs(NO_DRIVER, smi->out);
    else fputs("Failed to initialize NVML: Unknown Error\n", smi->out);
    fprintf(stderr, "gpuyard: %s\n", smi->view.why);
    return status == GY_OTHER_VERSION ? EXIT_VERSION : status == GY_NO_STATE ? EXIT_NO_DRIVER : EXIT_OTHER;
}

static void copy_body(struct smi *smi) {
    struct gy_reading reading;
    do {
        reading = gy_begin(&smi->view);
        memcpy(smi->body, reading.machine, smi->view.header->body_size);
    } while (!gy_still(&smi->view, &reading));
    const struct gy_header *header = smi->view.header;
    reading.machine = (const struct gy_machine *)smi->body;
    reading.products = (const struct gy_product *)(smi->body + header->products_at);
    reading.devices = (const struct gy_device *)(smi->body + header->devices_at);
    reading.migs = (const struct gy_mig *)(smi->body + header->migs_at);
    reading.processes = (const struct gy_process *)(smi->body + header->processes_at);
    smi->reading = reading;
}

static enum exit_code refresh(struct smi *smi) {
    enum gy_status status = smi->view.header ? gy_follow(&smi->view) : gy_open(&smi->view);
    if (status != GY_OK) return explain(smi, status);
    free(smi->body);
    free(smi->gpus);
    smi->body = malloc(smi->view.header->body_size);
    smi->gpus = calloc(smi->view.header->device_capacity + 1, sizeof *smi->gpus);
    if (!smi->body || !smi->gpus) {
        fputs("Insufficient memory\n", smi->out);
        return EXIT_OTHER;
    }
    copy_body(smi);
    return EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------ what -i asks for */

/* A bus id may be written with a domain of four digits or none. */
static int same_bus(const char *word, size_t length, const char *bus_id) {
    for (int skip = 0; skip <= 9; skip += skip ? 5 : 4)
        if (strlen(bus_id + skip) == length && !strncasecmp(word, bus_id + skip, length)) return 1;
    return 0;
}

static int names(const char *word, size_t length, const struct smi_gpu *gpu) {
    char index[16];
    snprintf(index, sizeof index, "%u", gpu->index);
    if (strlen(index) == length && !memcmp(word, index, length)) return 1;
    if (strlen(gpu->device->uuid) == length && !memcmp(word, gpu->device->uuid, length)) return 1;
    if (strlen(gpu->device->serial) == length && !memcmp(word, gpu->device->serial, length)) return 1;
    return same_bus(word, length, gpu->device->pci_bus_id);
}

static int asked_for(const char *ids, const struct smi_gpu *gpu) {
    if (!ids) return 1;
    for (const char *word = ids; *word;) {
        size_t length = strcspn(word, ", ");
        if (length && names(word, length, gpu)) return 1;
        word += length + (word[length] != 0);
    }
    return 0;
}

static void say_lost(struct smi *smi, const struct smi_gpu *gpu) {
    fprintf(smi->complaints,
            "Unable to determine the device handle for GPU%s: GPU is lost.  Reboot the system to recover this GPU\n",
            gpu->device->pci_bus_id + 4);
    smi->lost++;
}

static void choose(struct smi *smi, const char *ids) {
    smi->visible = smi->count = smi->lost = 0;
    for (uint32_t i = 0; i < smi->reading.device_count; i++) {
        const struct gy_device *device = &smi->reading.devices[i];
        if (device->product >= smi->reading.product_count || !gy_shows_device(&smi->view, &smi->reading, i)) continue;
        struct smi_gpu gpu = {smi->visible++, device, &smi->reading.products[device->product]};
        if (!asked_for(ids, &gpu)) continue;
        if (device->health == GY_HEALTH_OFF_THE_BUS) say_lost(smi, &gpu);
        else smi->gpus[smi->count++] = gpu;
    }
}

enum exit_code smi_take(struct smi *smi, const char *ids) {
    enum exit_code code = refresh(smi);
    if (code != EXIT_OK) return code;
    choose(smi, ids);
    if (smi->count) return EXIT_OK;
    if (smi->lost) return EXIT_LOST;
    fputs("No devices were found\n", smi->out);
    return EXIT_NOT_FOUND;
}

/* ------------------------------------------------------------------------------------------------------ shared words */

const char *smi_now(char *text, size_t size, const char *format) {
    struct timespec now;
    struct tm parts;
    char rough[64];
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    strftime(rough, sizeof rough, format, &parts);
    snprintf(text, size, "%s", rough);
    if (strchr(format, '/')) snprintf(text, size, "%s.%03ld", rough, now.tv_nsec / 1000000);
    return text;
}

unsigned long long smi_mib(uint64_t bytes) { return bytes >> 20; }

uint32_t smi_position(const struct smi *smi, const struct smi_gpu *gpu) {
    return (uint32_t)(gpu->device - smi->reading.devices);
}

uint32_t smi_processes(const struct smi *smi, const struct smi_gpu *gpu, struct gy_span *span) {
    *span = gy_processes_of(&smi->reading, smi_position(smi, gpu));
    uint32_t shown = 0;
    for (uint32_t p = span->first; p < span->end; p++) shown += (uint32_t)smi_shows_process(smi, gpu, p);
    return shown;
}

int smi_shows_process(const struct smi *smi, const struct smi_gpu *gpu, uint32_t process) {
    return gy_shows_process(&smi->view, &smi->reading, smi_position(smi, gpu), process);
}

int smi_shows_mig(struct smi *smi, uint32_t mig) { return gy_shows_mig(&smi->view, &smi->reading, mig); }
