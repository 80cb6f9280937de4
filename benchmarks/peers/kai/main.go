// Runs KAI's scheduling cycle on a snapshot and says what it took and what it did.
//
// The scheduler is KAI's own, called as its snapshot tool calls it. That tool itself cannot be used: it acts on a fake
// API server that gives up ("channel full") when a cycle evicts a few hundred pods. Here every write is answered at
// once and forgotten, so that no cost of an API server is counted, and a cycle can be repeated on the same cluster.
//
// Prints one JSON object a line: a stage with its milliseconds as soon as it ends, and the counts at the end of a cycle.
package main

import (
	"archive/zip"
	"encoding/json"
	"flag"
	"log"
	"net/http"
	"os"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/testing"

	kaifake "github.com/NVIDIA/KAI-scheduler/pkg/apis/client/clientset/versioned/fake"
	"github.com/NVIDIA/KAI-scheduler/pkg/scheduler/actions"
	"github.com/NVIDIA/KAI-scheduler/pkg/scheduler/api/pod_status"
	"github.com/NVIDIA/KAI-scheduler/pkg/scheduler/cache"
	"github.com/NVIDIA/KAI-scheduler/pkg/scheduler/conf_util"
	"github.com/NVIDIA/KAI-scheduler/pkg/scheduler/framework"
	kailog "github.com/NVIDIA/KAI-scheduler/pkg/scheduler/log"
	"github.com/NVIDIA/KAI-scheduler/pkg/scheduler/plugins"
	"github.com/NVIDIA/KAI-scheduler/pkg/scheduler/plugins/snapshot"
)

const onlyErrors = 0

type stage struct {
	Stage string  `json:"stage"`
	Ms    float64 `json:"ms"`
	CPUMs float64 `json:"cpu_ms"`
}

// moment is read on both clocks: the wall's, and the processor time this process has had.
type moment struct {
	wall time.Time
	cpu  time.Duration
}

type counts struct {
	Binds    int `json:"binds"`
	Promises int `json:"promises"`
	Evicts   int `json:"evicts"`
	Moves    int `json:"moves"`
}

var out = json.NewEncoder(os.Stdout)

func main() {
	filename := flag.String("snapshot", "", "the zipped snapshot")
	repeats := flag.Int("repeats", 1, "how many cycles to run")
	enough := flag.Duration("enough", time.Minute, "start no further cycle after this time")
	flag.Parse()

	begun := now()
	must(kailog.InitLoggers(onlyErrors))
	kailog.InfraLogger.SetSessionID("bench")
	actions.InitDefaultActions()
	plugins.InitDefaultPlugins()

	loaded := load(*filename)
	filled := filledCache(loaded)
	say("load", begun)
	started := time.Now()
	for done := 0; done < *repeats && (done == 0 || time.Since(started) < *enough); done++ {
		cycle(filled, loaded)
	}
}

func load(filename string) *snapshot.Snapshot {
	archive, err := zip.OpenReader(filename)
	must(err)
	defer archive.Close()
	file, err := archive.Open(snapshot.SnapshotFileName)
	must(err)
	defer file.Close()
	loaded := &snapshot.Snapshot{}
	must(json.NewDecoder(file).Decode(loaded))
	return loaded
}

func filledCache(loaded *snapshot.Snapshot) cache.Cache {
	kubeClient := fake.NewSimpleClientset(kubeObjects(loaded.RawObjects)...)
	kaiClient := kaifake.NewSimpleClientset(kaiObjects(loaded.RawObjects)...)
	forgetWrites(&kubeClient.Fake)
	forgetWrites(&kaiClient.Fake)

	params := loaded.SchedulerParams
	filled := cache.New(&cache.SchedulerCacheParams{
		KubeClient:                  kubeClient,
		KAISchedulerClient:          kaiClient,
		DiscoveryClient:             kubeClient.Discovery(),
		SchedulerName:               params.SchedulerName,
		NodePoolParams:              params.PartitionParams,
		FullHierarchyFairness:       params.FullHierarchyFairness,
		AllowConsolidatingReclaim:   params.AllowConsolidatingReclaim,
		NumOfStatusRecordingWorkers: params.NumOfStatusRecordingWorkers,
	})
	forEver := make(chan struct{})
	filled.Run(forEver)
	filled.WaitForCacheSync(forEver)
	return filled
}

func kubeObjects(raw *snapshot.RawKubernetesObjects) (all []runtime.Object) {
	for _, pod := range raw.Pods {
		all = append(all, pod)
	}
	for _, node := range raw.Nodes {
		all = append(all, node)
	}
	for _, class := range raw.PriorityClasses {
		all = append(all, class)
	}
	return all
}

func kaiObjects(raw *snapshot.RawKubernetesObjects) (all []runtime.Object) {
	for _, group := range raw.PodGroups {
		all = append(all, group)
	}
	for _, queue := range raw.Queues {
		all = append(all, queue)
	}
	return all
}

func forgetWrites(client *testing.Fake) {
	for _, verb := range []string{"create", "update", "patch", "delete"} {
		client.PrependReactor(verb, "*", forget)
	}
}

// forget answers a write as a server would. Who writes an event reads the answer, so it must not be empty.
func forget(action testing.Action) (bool, runtime.Object, error) {
	if written, ok := action.(interface{ GetObject() runtime.Object }); ok {
		return true, written.GetObject(), nil
	}
	if action.GetResource().Resource == "events" {
		return true, &v1.Event{}, nil
	}
	return true, nil, nil
}

// cycle is what KAI's scheduler does every second: open a session, which builds its structures, and run the actions.
func cycle(filled cache.Cache, loaded *snapshot.Snapshot) {
	started := now()
	session, err := framework.OpenSession(filled, loaded.Config, loaded.SchedulerParams, "bench", http.NewServeMux())
	must(err)
	say("open", started)
	chosen, err := conf_util.GetActionsFromConfig(loaded.Config)
	must(err)
	for _, action := range chosen {
		started = now()
		action.Execute(session)
		say(string(action.Name()), started)
	}
	must(out.Encode(counted(session)))
	framework.CloseSession(session)
}

func now() moment {
	var used syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return moment{time.Now(), time.Duration(used.Utime.Nano() + used.Stime.Nano())}
}

func say(name string, started moment) {
	ended := now()
	must(out.Encode(stage{name, ms(ended.wall.Sub(started.wall)), ms(ended.cpu - started.cpu)}))
}

func ms(passed time.Duration) float64 {
	return float64(passed.Microseconds()) / 1000
}

func counted(session *framework.Session) (seen counts) {
	for _, job := range session.PodGroupInfos {
		for _, task := range job.GetAllPodsMap() {
			ran := task.Pod.Spec.NodeName != ""
			switch {
			case task.Status == pod_status.Binding || task.Status == pod_status.Allocated:
				seen.Binds++
			case task.Status == pod_status.Pipelined && ran:
				seen.Moves++
			case task.Status == pod_status.Pipelined:
				seen.Promises++
			case task.Status == pod_status.Releasing:
				seen.Evicts++
			}
		}
	}
	return seen
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
