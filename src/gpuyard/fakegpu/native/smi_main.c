/* The command line of nvidia-smi. */
#include "smi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum mode {
    TABLE,
    LIST,
    REPORT,
    QUERY,
    DEVICE_MONITOR,
    PROCESS_MONITOR,
    TOPOLOGY,
    LINKS,
    MIG_PROFILES,
    MIG_INSTANCES,
    MIG_COMPUTE_INSTANCES,
    CHANGE
};

struct options {
    enum mode mode;
    int query; /* Which one, for the mode of that name. */
    const char *ids, *fields, *format, *file, *display, *change;
    struct monitor monitor;
    int xml;
    long interval_ms; /* Zero: once. */
    long rounds;      /* Zero: for ever, when there is an interval. */
};

static const char HELP[] =
    "NVIDIA System Management Interface of a gpuyard fake machine\n\n"
    "nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n\n"
    "    -h,   --help                Print this and exit.\n"
    "          --version             Print the versions of driver and CUDA.\n\n"
    "  LIST OPTIONS:\n"
    "    -L,   --list-gpus           Display the GPUs of this machine.\n\n"
    "  SUMMARY OPTIONS: <no arguments>  Show a summary of the GPUs.\n"
    "    [plus any of]\n"
    "    -i,   --id=                 Only these GPUs: index, UUID, serial or bus id, several with commas.\n"
    "    -f,   --filename=           Write to a file instead of the terminal.\n"
    "    -l,   --loop=               Repeat every so many seconds (5 when none are given) until Ctrl+C.\n"
    "    -lms, --loop-ms=            Repeat every so many milliseconds until Ctrl+C.\n\n"
    "  QUERY OPTIONS:\n"
    "    -q,   --query               Everything about the GPUs.\n"
    "    [plus any of]\n"
    "    -x,   --xml-format          As XML.\n"
    "    -d,   --display=            Only some of it: MEMORY, UTILIZATION, ECC, TEMPERATURE, POWER, CLOCK, COMPUTE,\n"
    "                                PIDS, PERFORMANCE, ROW_REMAPPER; several with commas.\n"
    "    -i, -f, -l, -lms            As above.\n\n"
    "  SELECTIVE QUERY OPTIONS:\n"
    "    --query-gpu=                Some fields of each GPU; --help-query-gpu lists them.\n"
    "    --query-compute-apps=       Some fields of each process; --help-query-compute-apps lists them.\n"
    "    --query-remapped-rows=, --query-supported-clocks=, --query-retired-pages=, --query-accounted-apps=\n"
    "    [mandatory]\n"
    "    --format=                   csv[,noheader][,nounits]\n"
    "    [plus any of]\n"
    "    -i, -f, -l, -lms            As above.\n\n"
    "    nvidia-smi --query-gpu=index,name,memory.used --format=csv,noheader\n\n"
    "  MONITORS:\n"
    "    dmon [-c N] [-d SECONDS]    One line a GPU, again and again; -s puc chooses groups of columns:\n"
    "                                p power and temperature, u use, c clocks, v violations, m memory, e errors,\n"
    "                                t PCIe; -o DT puts date and time in front.\n"
    "    pmon [-c N] [-d SECONDS]    One line a process, again and again.\n"
    "    topo -m, nvlink -s          How the GPUs are connected.\n"
    "    mig -lgip | -lgi | -lci     What GPUs can be cut into, and what they are cut into.\n\n"
    "The state is read from $GPUYARD_FAKE_STATE (or /run/gpuyard-fake); NVIDIA_VISIBLE_DEVICES chooses what is seen.\n";

static int bad_option(const char *option) {
    printf("Option %s is not recognized. Please run 'nvidia-smi -h'.\n\n", option);
    return EXIT_BAD_ARGUMENT;
}

static int bad_combination(void) {
    printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n");
    return EXIT_BAD_ARGUMENT;
}

/* ------------------------------------------------------------------------------------------------- reading options */

/* An option with a value: "-i 0", "--id=0" or "--id 0". */
struct option {
    const char *shorts, *longs;
};

static const char *value_of(struct option option, int count, char **words, int *at) {
    const char *word = words[*at];
    size_t length = strcspn(word, "=");
    int named = (strlen(option.longs) == length && !strncmp(word, option.longs, length))
                || (strlen(option.shorts) == length && !strncmp(word, option.shorts, length));
    if (named && word[length]) return word + length + 1;
    if (strcmp(word, option.shorts) && strcmp(word, option.longs)) return NULL;
    if (*at + 1 >= count) return "";
    return words[++*at];
}

static int is(const char *word, const char *shorts, const char *longs) {
    return !strcmp(word, shorts) || !strcmp(word, longs);
}

static int whole_number(const char *text, long *number) {
    char *end;
    errno = 0;
    *number = strtol(text, &end, 10);
    return *text && !*end && !errno && *number > 0;
}

/* -l may stand without its number. */
static int loop_option(struct options *options, int count, char **words, int *at) {
    const char *word = words[*at];
    long number = 5;
    int seconds = is(word, "-l", "--loop") || !strncmp(word, "--loop=", 7) || !strncmp(word, "-l=", 3);
    int millis = is(word, "-lms", "--loop-ms") || !strncmp(word, "--loop-ms=", 10) || !strncmp(word, "-lms=", 5);
    if (!seconds && !millis) return 0;
    const char *text = strchr(word, '=');
    if (text) text++;
    else if (*at + 1 < count && words[*at + 1][0] != '-') text = words[++*at];
    if (text && !whole_number(text, &number)) return -1;
    options->interval_ms = seconds ? number * 1000 : number;
    return 1;
}

static const char *const CHANGES[] = {"-pm",  "--persistence-mode",    "-e",   "--ecc-config",
                                      "-c",   "--compute-mode",        "-pl",  "--power-limit",
                                      "-ac",  "--applications-clocks", "-lgc", "--lock-gpu-clocks",
                                      "-lmc", "--lock-memory-clocks",  "-mig", "--multi-instance-gpu",
                                      "-p",   "--reset-ecc-errors",    "-am",  "--accounting-mode"};
static const char *const BARE_CHANGES[] = {"-r",   "--gpu-reset",       "-rac", "--reset-applications-clocks",
                                           "-rgc", "--reset-gpu-clocks"};

static int change_option(struct options *options, int count, char **words, int *at) {
    for (size_t i = 0; i < sizeof BARE_CHANGES / sizeof *BARE_CHANGES; i++)
        if (!strcmp(words[*at], BARE_CHANGES[i])) options->change = words[*at];
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) {
        const char *value = value_of((struct option){CHANGES[i], CHANGES[i]}, count, words, at);
        if (value) options->change = CHANGES[i];
        if (value) break;
    }
    if (options->change) options->mode = CHANGE;
    return options->change != NULL;
}

static int mode_option(struct options *options, const char *word) {
    if (is(word, "-L", "--list-gpus")) options->mode = LIST;
    else if (is(word, "-q", "--query")) options->mode = REPORT;
    else if (is(word, "-x", "--xml-format")) options->xml = 1;
    else return 0;
    return 1;
}

static int text_option(struct options *options, int count, char **words, int *at) {
    const struct {
        struct option option;
        const char **place;
    } known[] = {
        {{"-i", "--id"}, &options->ids},
        {{"-f", "--filename"}, &options->file},
        {{"-d", "--display"}, &options->display},
        {{"--format", "--format"}, &options->format},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *value = value_of(known[i].option, count, words, at);
        if (value) *known[i].place = value;
        if (value) return 1;
    }
    return 0;
}

static int query_option(struct options *options, int count, char **words, int *at) {
    const char *name;
    for (int query = 0; (name = smi_query_option(query)); query++) {
        const char *value = value_of((struct option){name, name}, count, words, at);
        if (!value) continue;
        options->mode = QUERY;
        options->query = query;
        options->fields = value;
        return 1;
    }
    return 0;
}

/* Zero, or the exit code. */
static int read_options(struct options *options, int count, char **words) {
    for (int at = 1; at < count; at++) {
        if (mode_option(options, words[at]) || text_option(options, count, words, &at)) continue;
        if (query_option(options, count, words, &at)) continue;
        int loop = loop_option(options, count, words, &at);
        if (loop < 0) return bad_combination();
        if (loop || change_option(options, count, words, &at)) continue;
        return bad_option(words[at]);
    }
    if ((options->mode == QUERY) != (options->format != NULL) || (options->xml && options->mode != REPORT))
        return bad_combination();
    if (options->display && options->mode != REPORT) return bad_combination();
    return 0;
}

static int read_monitor(struct options *options, int count, char **words) {
    options->mode = !strcmp(words[1], "dmon") ? DEVICE_MONITOR : PROCESS_MONITOR;
    options->interval_ms = 1000;
    options->monitor.groups = "puc";
    for (int at = 2; at < count; at++) {
        const char *value;
        long number;
        if ((value = value_of((struct option){"-c", "--count"}, count, words, &at))) {
            if (!whole_number(value, &options->rounds)) return bad_combination();
        } else if ((value = value_of((struct option){"-d", "--delay"}, count, words, &at))) {
            if (!whole_number(value, &number)) return bad_combination();
            options->interval_ms = number * 1000;
        } else if ((value = value_of((struct option){"-i", "--id"}, count, words, &at))) {
            options->ids = value;
        } else if ((value = value_of((struct option){"-s", "--select"}, count, words, &at))) {
            if (options->mode == DEVICE_MONITOR && !smi_known_groups(value)) return bad_combination();
            options->monitor.groups = value;
        } else if ((value = value_of((struct option){"-o", "--options"}, count, words, &at))) {
            if (value[strspn(value, "DT")]) return bad_combination();
            options->monitor.date = strchr(value, 'D') != NULL;
            options->monitor.time = strchr(value, 'T') != NULL;
        } else {
            return bad_option(words[at]);
        }
    }
    return 0;
}

static int read_mig(struct options *options, int count, char **words) {
    options->mode = CHANGE;
    for (int at = 2; at < count; at++) {
        const char *value;
        if (is(words[at], "-lgip", "--list-gpu-instance-profiles")) options->mode = MIG_PROFILES;
        else if (is(words[at], "-lgi", "--list-gpu-instances")) options->mode = MIG_INSTANCES;
        else if (is(words[at], "-lci", "--list-compute-instances")) options->mode = MIG_COMPUTE_INSTANCES;
        else if ((value = value_of((struct option){"-i", "--id"}, count, words, &at))) options->ids = value;
        else options->change = words[at];
    }
    return options->mode == CHANGE && !options->change ? bad_combination() : 0;
}

/* topo -m and nvlink -s: of all they can show only that, and nothing else is taken for it. */
static int read_connections(struct options *options, int count, char **words) {
    options->mode = !strcmp(words[1], "topo") ? TOPOLOGY : LINKS;
    int asked = 0;
    for (int at = 2; at < count; at++) {
        const char *value;
        if (options->mode == TOPOLOGY ? is(words[at], "-m", "--matrix") : is(words[at], "-s", "--status")) asked = 1;
        else if ((value = value_of((struct option){"-i", "--id"}, count, words, &at))) options->ids = value;
        else return bad_option(words[at]);
    }
    return asked ? 0 : bad_combination();
}

static int read_format(const char *text, struct csv *csv) {
    int csv_seen = 0;
    *csv = (struct csv){1, 1};
    while (*text) {
        text += strspn(text, ", ");
        size_t length = strcspn(text, ", ");
        if (!length) break;
        if (length == 3 && !memcmp(text, "csv", 3)) csv_seen = 1;
        else if (length == 8 && !memcmp(text, "noheader", 8)) csv->header = 0;
        else if (length == 7 && !memcmp(text, "nounits", 7)) csv->units = 0;
        else return 0;
        text += length;
    }
    return csv_seen;
}

/* ---------------------------------------------------------------------------------------------------------- running */

static enum exit_code change(struct smi *smi, const struct options *options) {
    if (is(options->change, "-pm", "--persistence-mode")) {
        for (unsigned i = 0; i < smi->count; i++)
            fprintf(smi->out, "Persistence mode is already Enabled for GPU %s.\n", smi->gpus[i].device->pci_bus_id);
        fputs("All done.\n", smi->out);
        return EXIT_OK;
    }
    for (unsigned i = 0; i < smi->count; i++)
        fprintf(smi->out, "Option %s is not supported for GPU %s.\n", options->change, smi->gpus[i].device->pci_bus_id);
    fputs("Treating as warning and moving on.\nAll done.\n", smi->out);
    return EXIT_NOT_SUPPORTED;
}

static enum exit_code show(struct smi *smi, const struct options *options, long round, struct csv csv,
                           unsigned display) {
    if (round > 0) csv.header = 0;
    switch (options->mode) {
        case LIST: smi_list(smi); return EXIT_OK;
        case REPORT: smi_report(smi, options->xml, display); return EXIT_OK;
        case QUERY: return smi_query(smi, options->query, options->fields, csv);
        case DEVICE_MONITOR: smi_device_monitor(smi, round % 20 == 0, &options->monitor); return EXIT_OK;
        case PROCESS_MONITOR: smi_process_monitor(smi, round % 20 == 0); return EXIT_OK;
        case TOPOLOGY: smi_topology(smi); return EXIT_OK;
        case LINKS: smi_links(smi); return EXIT_OK;
        case MIG_PROFILES: smi_mig_profiles(smi); return EXIT_OK;
        case MIG_INSTANCES: smi_mig_instances(smi); return EXIT_OK;
        case MIG_COMPUTE_INSTANCES: smi_mig_compute_instances(smi); return EXIT_OK;
        case CHANGE: return change(smi, options);
        default: smi_table(smi); return EXIT_OK;
    }
}

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static int run(const struct options *options) {
    struct smi smi = {.out = stdout};
    struct csv csv = {1, 1};
    int bad = 0;
    unsigned display = options->display ? smi_display(options->display, &bad) : 0;
    if (bad || (options->format && !read_format(options->format, &csv))) return bad_combination();
    if (options->file && !(smi.out = fopen(options->file, "w"))) {
        printf("Unable to open file %s for writing.\n", options->file);
        return EXIT_BAD_ARGUMENT;
    }
    smi.complaints = options->xml ? stderr : smi.out;
    enum exit_code code = EXIT_OK;
    for (long round = 0; code == EXIT_OK && (!options->rounds || round < options->rounds); round++) {
        if (round) sleep_ms(options->interval_ms);
        code = smi_take(&smi, options->ids);
        if (code == EXIT_OK) code = show(&smi, options, round, csv, display);
        if (fflush(smi.out)) return EXIT_OTHER; /* Whoever read this has gone. */
        if (!options->interval_ms) break;
    }
    return code == EXIT_OK && smi.lost ? EXIT_LOST : code;
}

static int print_version(void) {
    struct smi smi = {.out = stdout, .complaints = stderr};
    enum exit_code code = smi_take(&smi, NULL);
    if (code != EXIT_OK && code != EXIT_NOT_FOUND && code != EXIT_LOST) return code;
    const struct gy_machine *machine = smi.reading.machine;
    printf(
        "NVIDIA-SMI version  : %s\nNVML version        : %.*s\nDRIVER version      : %s\nCUDA Version        : %u.%u\n",
        machine->driver_version, (int)strcspn(machine->driver_version, "."), machine->driver_version,
        machine->driver_version, machine->cuda_major, machine->cuda_minor);
    return EXIT_OK;
}

/* What is asked for before anything else: help and the version. A negative number: nothing of the kind. */
static int told(const char *word) {
    const char *name;
    if (is(word, "-h", "--help")) return fputs(HELP, stdout) < 0;
    if (!strcmp(word, "--version")) return print_version();
    if (strncmp(word, "--help-", 7)) return -1;
    for (int query = 0; (name = smi_query_option(query)); query++)
        if (!strcmp(word + 7, name + 2)) return smi_query_help(query, stdout), EXIT_OK;
    return -1;
}

int main(int count, char **words) {
    struct options options = {.mode = TABLE};
    const char *first = count > 1 ? words[1] : "";
    for (int i = 1; i < count; i++) {
        int code = told(words[i]);
        if (code >= 0) return code;
    }
    int code = 0;
    if (!strcmp(first, "dmon") || !strcmp(first, "pmon")) code = read_monitor(&options, count, words);
    else if (!strcmp(first, "mig")) code = read_mig(&options, count, words);
    else if (!strcmp(first, "topo") || !strcmp(first, "nvlink")) code = read_connections(&options, count, words);
    else code = read_options(&options, count, words);
    return code ? code : run(&options);
}
