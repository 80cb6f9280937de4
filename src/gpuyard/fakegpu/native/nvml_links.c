/* How the GPUs of the machine are connected: NVLinks, what they share on PCIe, and the processors they are near to. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LINKS = 18 };

static nvmlReturn_t link_of(nvmlDevice_t handle, unsigned link, const void *out, struct seen *seen) {
    nvmlReturn_t status = nvml_look_gpu(handle, out, seen);
    if (status != NVML_SUCCESS) return status;
    if (link >= LINKS) return NVML_ERROR_INVALID_ARGUMENT;
    return link < seen->product.nvlinks ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned link, unsigned *active) {
    struct seen seen;
    nvmlReturn_t status = link_of(handle, link, active, &seen);
    if (status == NVML_SUCCESS) *active = 1;
    return status;
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t handle, unsigned link, unsigned *version) {
    struct seen seen;
    nvmlReturn_t status = link_of(handle, link, version, &seen);
    if (status == NVML_SUCCESS) *version = seen.product.nvlink_version;
    return status;
}

API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t handle, unsigned link, unsigned capability, unsigned *has) {
    struct seen seen;
    nvmlReturn_t status = link_of(handle, link, has, &seen);
    if (status == NVML_SUCCESS && capability > 5) return NVML_ERROR_INVALID_ARGUMENT;
    if (status == NVML_SUCCESS) *has = 1;
    return status;
}

API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t handle, unsigned link, unsigned counter,
                                                 unsigned long long *count) {
    struct seen seen;
    nvmlReturn_t status = link_of(handle, link, count, &seen);
    if (status == NVML_SUCCESS && counter > 4) return NVML_ERROR_INVALID_ARGUMENT;
    if (status == NVML_SUCCESS) *count = 0;
    return status;
}

enum { TO_A_SWITCH = 2 };

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t handle, unsigned link, unsigned *kind) {
    struct seen seen;
    nvmlReturn_t status = link_of(handle, link, kind, &seen);
    if (status == NVML_SUCCESS) *kind = TO_A_SWITCH;
    return status;
}

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

/* Above the buses of all GPUs; the links of each GPU are dealt out over the switches, one after the other. */
enum { SWITCH_BUS = 0xF8, SWITCHES = 6, SWITCH_DEVICE_ID = 0x1AF110DE };

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned link, struct pci_info *out) {
    struct seen seen;
    nvmlReturn_t status = link_of(handle, link, out, &seen);
    if (status != NVML_SUCCESS) return status;
    memset(out, 0, sizeof *out);
    out->bus = SWITCH_BUS + link % SWITCHES;
    out->device_id = SWITCH_DEVICE_ID;
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "0000:%02X:00.0", out->bus & 0xFFu);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus & 0xFFu);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t handle, unsigned link, struct pci_info *out) {
    return nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, out);
}

enum { SAME_GPU = 0, ONE_SWITCH = 10, ONE_PROCESSOR = 40, WHOLE_MACHINE = 50 };
enum { PEER_OK = 0, PEER_NOT_SUPPORTED = 5 };

static nvmlReturn_t pair(nvmlDevice_t one, nvmlDevice_t other, const void *out, struct seen seen[2]) {
    nvmlReturn_t status = nvml_look_gpu(one, out, &seen[0]);
    return status == NVML_SUCCESS ? nvml_look_gpu(other, out, &seen[1]) : status;
}

static unsigned common_ancestor(const struct gy_device *one, const struct gy_device *other) {
    if (!strcmp(one->uuid, other->uuid)) return SAME_GPU;
    if (one->pcie_switch == other->pcie_switch) return ONE_SWITCH;
    return one->numa_node == other->numa_node ? ONE_PROCESSOR : WHOLE_MACHINE;
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level) {
    struct seen seen[2];
    nvmlReturn_t status = pair(one, other, level, seen);
    if (status == NVML_SUCCESS) *level = common_ancestor(&seen[0].device, &seen[1].device);
    return status;
}

/* Those that have exactly this in common with the GPU: with no room given, how many there are. */
API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t handle, unsigned level, unsigned *count,
                                                  nvmlDevice_t *near) {
    struct seen seen;
    struct gy_reading reading;
    char uuids[64][GY_UUID];
    unsigned found;
    do {
        nvmlReturn_t status = nvml_look_gpu(handle, count, &seen);
        if (status == NVML_SUCCESS) status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        found = 0;
        for (uint32_t i = 0; i < reading.device_count && found < sizeof uuids / sizeof *uuids; i++) {
            const struct gy_device *other = &reading.devices[i];
            if (i == seen.position || !gy_shows_device(&nvml_view, &reading, i)) continue;
            if (common_ancestor(&seen.device, other) != level) continue;
            memcpy(uuids[found++], other->uuid, GY_UUID);
        }
    } while (!nvml_still(&reading));
    unsigned room = near ? *count : 0;
    for (unsigned i = 0; i < found && i < room; i++) near[i] = nvml_handle_for(DEVICE_HANDLE, uuids[i]);
    *count = near && found > room ? room : found;
    return NVML_SUCCESS;
}

enum { BY_NVLINK = 2, PEER_WAYS = 6 };

/* NVLinks join GPUs of one product only. */
static int linked(const struct seen seen[2]) {
    return seen[0].product.nvlinks && !strcmp(seen[0].product.name, seen[1].product.name);
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned way, unsigned *peer) {
    struct seen seen[2];
    nvmlReturn_t status = pair(one, other, peer, seen);
    if (status != NVML_SUCCESS) return status;
    if (way >= PEER_WAYS) return NVML_ERROR_INVALID_ARGUMENT;
    *peer = way == BY_NVLINK && !linked(seen) ? PEER_NOT_SUPPORTED : PEER_OK;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *same) {
    struct seen seen[2];
    nvmlReturn_t status = pair(one, other, same, seen);
    if (status == NVML_SUCCESS) *same = one == other;
    return status;
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t handle, unsigned size, unsigned long *set) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, size ? set : NULL, &seen);
    if (status != NVML_SUCCESS) return status;
    long processors = sysconf(_SC_NPROCESSORS_CONF);
    memset(set, 0, size * sizeof *set);
    for (long i = 0; i < processors && i < (long)size * 64; i++) set[i / 64] |= 1ul << i % 64;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t handle, unsigned size, unsigned long *set,
                                                     unsigned scope) {
    return scope > 1 ? NVML_ERROR_INVALID_ARGUMENT : nvmlDeviceGetCpuAffinity(handle, size, set);
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned size, unsigned long *set, unsigned scope) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, size ? set : NULL, &seen);
    if (status != NVML_SUCCESS) return status;
    if (scope > 1) return NVML_ERROR_INVALID_ARGUMENT;
    memset(set, 0, size * sizeof *set);
    set[0] = 1ul << seen.device.numa_node % 64;
    return NVML_SUCCESS;
}
