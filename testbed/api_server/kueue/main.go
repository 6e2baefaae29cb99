// Kueue's core controllers and scheduler, without its webhooks and its own jobs, for tests against an API server.
package main

import (
	"log"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	config "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	qcache "sigs.k8s.io/kueue/pkg/cache/queue"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/core"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	"sigs.k8s.io/kueue/pkg/scheduler"
	"sigs.k8s.io/kueue/pkg/scheduler/preemption/expectations"
)

func main() {
	ctrl.SetLogger(zap.New())
	ctx, scheme := ctrl.SetupSignalHandler(), runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, config.AddToScheme, kueue.AddToScheme} {
		must(add(scheme))
	}
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	must(err)
	must(indexer.Setup(ctx, mgr.GetFieldIndexer()))
	settings := &config.Configuration{}
	scheme.Default(settings)
	settings.LeaderElection = nil
	expected, requeuer := expectations.New(), qcache.NewRequeuer()
	must(mgr.Add(requeuer))
	cache := schdcache.New(mgr.GetClient())
	queues := qcache.NewManager(mgr.GetClient(), cache, requeuer, qcache.WithPreemptionExpectations(expected))
	_, err = core.SetupControllers(mgr, queues, cache, settings, nil, expected, nil)
	must(err)
	recorder := mgr.GetEventRecorderFor(constants.AdmissionName)
	must(mgr.Add(scheduler.New(queues, cache, mgr.GetClient(), recorder, scheduler.WithPreemptionExpectations(expected))))
	go queues.CleanUpOnContext(ctx)
	go cache.CleanUpOnContext(ctx)
	must(mgr.Start(ctx))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
