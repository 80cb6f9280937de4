/* nvidia-smi mig: the profiles a GPU can be cut by, and the instances it is cut into. Reading only. */
#include "smi.h"

static void no_mig(struct smi *smi, const char *what) { fprintf(smi->out, "No %s found: Not Found\n", what); }

/* ---------------------------------------------------------------------------------------------------------- profiles */

static const char PROFILES_LINE[] =
    "+-------------------------------------------------------------------------------+\n";

static unsigned used_instances(struct smi *smi, const struct smi_gpu *gpu, uint32_t profile) {
    struct gy_span span = gy_migs_of(&smi->reading, smi_position(smi, gpu));
    unsigned used = 0;
    for (uint32_t m = span.first; m < span.end; m++) used += smi->reading.migs[m].profile == (int32_t)profile;
    return used;
}

static void profile_rows(struct smi *smi, const struct smi_gpu *gpu, uint32_t at) {
    const struct gy_mig_profile *profile = &gpu->product->mig_profiles[at];
    unsigned used = used_instances(smi, gpu, at);
    char left[24];
    snprintf(left, sizeof left, "%u/%u", used < profile->instances_max ? profile->instances_max - used : 0,
             profile->instances_max);
    fprintf(smi->out, "| %3u  MIG %-14s %3u   %5s %11.2f       No   %4u   %3u   %3u   |\n", gpu->index, profile->name,
            profile->id, left, (double)profile->memory_bytes / (1u << 30), profile->multiprocessors, profile->decoders,
            profile->encoders);
    fprintf(smi->out, "| %63u   %3u   %3u   |\n%s", profile->copy_engines, profile->jpegs, profile->ofas,
            PROFILES_LINE);
}

void smi_mig_profiles(struct smi *smi) {
    unsigned shown = 0;
    for (unsigned i = 0; i < smi->count; i++) {
        const struct smi_gpu *gpu = &smi->gpus[i];
        for (uint32_t p = 0; p < gpu->product->mig_profile_count && p < GY_MIG_PROFILES; p++) {
            if (!shown++)
                fprintf(smi->out, "%s| %-77s |\n| %-77s |\n| %-77s |\n%s", PROFILES_LINE, "GPU instance profiles:",
                        "GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC",
                        "                               Free/Total   GiB              CE    JPEG  OFA",
                        "|===============================================================================|\n");
            profile_rows(smi, gpu, p);
        }
    }
    if (!shown) no_mig(smi, "MIG-supported devices");
}

/* --------------------------------------------------------------------------------------------------------- instances */

/* How one instance is written, in a table of this heading. */
struct instance_table {
    const char *title, *first, *second;
    void (*row)(char *out, size_t size, const struct smi_gpu *gpu, const struct gy_mig *mig, unsigned profile);
};

static void table_of(struct smi *smi, const struct instance_table *table) {
    static const char LINE[] = "+--------------------------------------------------------------------+\n";
    unsigned shown = 0;
    for (unsigned i = 0; i < smi->count; i++) {
        struct gy_span span = gy_migs_of(&smi->reading, smi_position(smi, &smi->gpus[i]));
        for (uint32_t m = span.first; m < span.end; m++) {
            const struct gy_mig *mig = &smi->reading.migs[m];
            if (!smi_shows_mig(smi, m)) continue;
            if (!shown++)
                fprintf(smi->out, "%s| %-66s |\n| %-66s |\n| %-66s |\n%s", LINE, table->title, table->first,
                        table->second, "|====================================================================|\n");
            int known = mig->profile >= 0 && mig->profile < GY_MIG_PROFILES;
            char row[128];
            table->row(row, sizeof row, &smi->gpus[i], mig,
                       known ? smi->gpus[i].product->mig_profiles[mig->profile].id : 0);
            fprintf(smi->out, "| %-66s |\n%s", row, LINE);
        }
    }
    if (!shown) no_mig(smi, table->title);
}

static void gpu_instance(char *out, size_t size, const struct smi_gpu *gpu, const struct gy_mig *mig,
                         unsigned profile) {
    snprintf(out, size, "%3u  MIG %-16s %4u     %4u       %3u:%u", gpu->index, mig->profile_name, profile,
             mig->gpu_instance, mig->index, mig->slices);
}

static void compute_instance(char *out, size_t size, const struct smi_gpu *gpu, const struct gy_mig *mig,
                             unsigned profile) {
    (void)profile;
    snprintf(out, size, "%3u   %5u      MIG %-14s %3u       %3u       %3u:%u", gpu->index, mig->gpu_instance,
             mig->profile_name, mig->slices - 1, mig->compute_instance, 0, mig->slices);
}

void smi_mig_instances(struct smi *smi) {
    static const struct instance_table TABLE = {
        "GPU instances:", "GPU   Name              Profile  Instance   Placement",
        "                           ID       ID       Start:Size", gpu_instance};
    table_of(smi, &TABLE);
}

void smi_mig_compute_instances(struct smi *smi) {
    static const struct instance_table TABLE = {
        "Compute instances:", "GPU     GPU       Name             Profile   Instance   Placement",
        "      Instance                       ID        ID       Start:Size", compute_instance};
    table_of(smi, &TABLE);
}
