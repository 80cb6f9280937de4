/* The machine, and the ways to a device's handle. */
#include "nvml.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct {
    nvmlReturn_t code;
    const char *text;
} ERRORS[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {8, "Insufficient External Power"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {11, "Interrupt Request Issue"},
    {12, "NVML Shared Library Not Found"},
    {13, "Function Not Found"},
    {14, "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {16, "GPU requires reset"},
    {17, "GPU access blocked by the operating system"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
    {19, "In use by another client"},
    {NVML_ERROR_MEMORY, "Insufficient memory"},
    {21, "No data"},
    {22, "The requested vgpu operation is not available on target device, because ECC is enabled"},
    {23, "Insufficient resources"},
    {24, "Frequency not supported"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
    {26, "Deprecated"},
    {27, "Not ready"},
    {28, "GPU not found"},
    {29, "Invalid state"},
    {NVML_ERROR_UNKNOWN, "Unknown Error"},
};

API const char *nvmlErrorString(nvmlReturn_t code) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == code) return ERRORS[i].text;
    return "Unknown Error";
}

/* ------------------------------------------------------------------------------------------------------ the machine */

static nvmlReturn_t machine(struct gy_machine *out, const void *argument) {
    struct gy_reading reading;
    do {
        nvmlReturn_t status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        if (!argument) return NVML_ERROR_INVALID_ARGUMENT;
        memcpy(out, reading.machine, offsetof(struct gy_machine, events));
    } while (!nvml_still(&reading));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    struct gy_machine here;
    nvmlReturn_t status = machine(&here, version);
    return status == NVML_SUCCESS ? nvml_copy(version, length, here.driver_version) : status;
}

/* The library's version is "CUDA major.driver version". */
API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    struct gy_machine here;
    char text[GY_TEXT + 16];
    nvmlReturn_t status = machine(&here, version);
    if (status != NVML_SUCCESS) return status;
    snprintf(text, sizeof text, "%u.%s", here.cuda_major, here.driver_version);
    return nvml_copy(version, length, text);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    struct gy_machine here;
    nvmlReturn_t status = machine(&here, version);
    if (status == NVML_SUCCESS) *version = (int)(here.cuda_major * 1000 + here.cuda_minor * 10);
    return status;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

struct driver_branch {
    unsigned version;
    char branch[80];
};

/* The branch of driver 570.195.03 is "r570_00". */
API nvmlReturn_t nvmlSystemGetDriverBranch(struct driver_branch *info, unsigned length) {
    struct gy_machine here;
    nvmlReturn_t status = machine(&here, info);
    if (status != NVML_SUCCESS) return status;
    if (info->version != VERSION_OF(struct driver_branch, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    char text[GY_TEXT + 8];
    snprintf(text, sizeof text, "r%.*s_00", (int)strcspn(here.driver_version, "."), here.driver_version);
    return nvml_copy(info->branch, length < sizeof info->branch ? length : (unsigned)sizeof info->branch, text);
}

API nvmlReturn_t nvmlSystemGetHicVersion(unsigned *count, void *entries) {
    struct gy_machine here;
    (void)entries;
    nvmlReturn_t status = machine(&here, count);
    if (status == NVML_SUCCESS) *count = 0;
    return status;
}

static nvmlReturn_t name_in_proc(unsigned pid, char *name, unsigned length) {
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NVML_ERROR_NOT_FOUND;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return NVML_ERROR_NOT_FOUND;
    text[size] = 0;
    return nvml_copy(name, length, text);
}

API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    struct gy_reading reading;
    char text[GY_PROCESS_NAME];
    int found;
    do {
        nvmlReturn_t status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        if (!name || !length) return NVML_ERROR_INVALID_ARGUMENT;
        uint32_t i = 0;
        while (i < reading.process_count && reading.processes[i].pid != pid) i++;
        found = i < reading.process_count;
        if (found) memcpy(text, reading.processes[i].name, sizeof text);
    } while (!nvml_still(&reading));
    return found ? nvml_copy(name, length, text) : name_in_proc(pid, name, length);
}

/* ----------------------------------------------------------------------------------------------- counts and handles */

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    struct gy_reading reading;
    do {
        nvmlReturn_t status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        if (!count) return NVML_ERROR_INVALID_ARGUMENT;
        *count = 0;
        for (uint32_t i = 0; i < reading.device_count; i++)
            *count += (unsigned)gy_shows_device(&nvml_view, &reading, i);
    } while (!nvml_still(&reading));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

/* What a caller looks for: a device for which `same` is true, among those it sees. */
struct search {
    unsigned index;
    const char *text;
    int (*same)(const struct search *, const struct gy_device *, unsigned index);
    nvmlReturn_t otherwise;
};

static nvmlReturn_t find_visible(const struct search *search, nvmlDevice_t *handle) {
    struct gy_reading reading;
    char uuid[GY_UUID];
    uint32_t health = 0;
    int found;
    do {
        nvmlReturn_t status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        if (!handle) return NVML_ERROR_INVALID_ARGUMENT;
        unsigned index = 0;
        found = 0;
        for (uint32_t i = 0; i < reading.device_count && !found; i++) {
            if (!gy_shows_device(&nvml_view, &reading, i)) continue;
            found = search->same(search, &reading.devices[i], index++);
            health = reading.devices[i].health;
            memcpy(uuid, reading.devices[i].uuid, sizeof uuid);
        }
    } while (!nvml_still(&reading));
    if (!found) return search->otherwise;
    if (health == GY_HEALTH_OFF_THE_BUS) return NVML_ERROR_GPU_IS_LOST;
    *handle = nvml_handle_for(DEVICE_HANDLE, uuid);
    return *handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

static int same_index(const struct search *search, const struct gy_device *device, unsigned index) {
    (void)device;
    return search->index == index;
}

static int same_uuid(const struct search *search, const struct gy_device *device, unsigned index) {
    (void)index;
    return !strcmp(search->text, device->uuid);
}

static int same_serial(const struct search *search, const struct gy_device *device, unsigned index) {
    (void)index;
    return *device->serial && !strcmp(search->text, device->serial);
}

/* The hexadecimal numbers of a text like "0000:07:00.0", up to the point. Written out because the scanning functions of
 * a C library have other names in its newer versions, and this library must load under any. */
static unsigned hex_parts(const char *text, unsigned parts[3]) {
    unsigned count = 0;
    for (parts[0] = 0; *text && *text != '.'; text++) {
        char letter = (char)(*text | 0x20);
        if (*text == ':' && ++count < 3) parts[count] = 0;
        else if (*text >= '0' && *text <= '9') parts[count] = parts[count] * 16 + (unsigned)(*text - '0');
        else if (letter >= 'a' && letter <= 'f') parts[count] = parts[count] * 16 + (unsigned)(letter - 'a' + 10);
        else return 0;
    }
    return count + 1;
}

/* People write a bus id with a domain of four or eight digits, or with none, in either case of letters. */
static int same_bus(const struct search *search, const struct gy_device *device, unsigned index) {
    (void)index;
    unsigned parts[3], count = hex_parts(search->text, parts);
    unsigned domain = count == 3 ? parts[0] : 0;
    if (count < 2) return 0;
    return domain == device->pci_domain && parts[count - 2] == device->pci_bus
           && parts[count - 1] == device->pci_device;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *handle) {
    struct search search = {index, NULL, same_index, NVML_ERROR_INVALID_ARGUMENT};
    return find_visible(&search, handle);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *handle) {
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

static nvmlReturn_t by_text(const char *text, int (*same)(const struct search *, const struct gy_device *, unsigned),
                            nvmlDevice_t *handle) {
    struct search search = {0, text ? text : "", same, text ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT};
    return find_visible(&search, handle);
}

static nvmlReturn_t mig_by_uuid(const char *uuid, nvmlDevice_t *handle) {
    struct gy_reading reading;
    int found;
    do {
        nvmlReturn_t status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        found = 0;
        for (uint32_t i = 0; i < reading.mig_count && !found; i++)
            found = !strcmp(reading.migs[i].uuid, uuid) && gy_shows_mig(&nvml_view, &reading, i);
    } while (!nvml_still(&reading));
    if (!found) return NVML_ERROR_NOT_FOUND;
    *handle = nvml_handle_for(MIG_HANDLE, uuid);
    return *handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle) {
    nvmlReturn_t status = by_text(uuid, same_uuid, handle);
    return status == NVML_ERROR_NOT_FOUND ? mig_by_uuid(uuid, handle) : status;
}

/* A UUID as text (type 1) or as bytes (type 2). */
struct uuid_value {
    unsigned version, type;
    union {
        char text[41];
        unsigned char bytes[16];
    } value;
};

API nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const struct uuid_value *uuid, nvmlDevice_t *handle) {
    if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
    if (uuid->version != VERSION_OF(struct uuid_value, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type == 1) return nvmlDeviceGetHandleByUUID(uuid->value.text, handle);
    const unsigned char *b = uuid->value.bytes;
    char text[GY_UUID];
    snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return uuid->type == 2 ? nvmlDeviceGetHandleByUUID(text, handle) : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *handle) {
    return by_text(serial, same_serial, handle);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *handle) {
    return by_text(bus_id, same_bus, handle);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *handle) {
    return by_text(bus_id, same_bus, handle);
}

/* There are neither units (of the old S-class boxes) nor excluded devices. */
static nvmlReturn_t none_of_it(unsigned *count) {
    struct gy_machine here;
    nvmlReturn_t status = machine(&here, count);
    if (status == NVML_SUCCESS) *count = 0;
    return status;
}

API nvmlReturn_t nvmlUnitGetCount(unsigned *count) { return none_of_it(count); }
API nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count) { return none_of_it(count); }
