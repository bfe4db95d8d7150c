//! The run, against ZooKeeper.

use crate::gate::gate;
use crate::rig::contender::{Plan, contend};
use crate::rig::history::Writer;
use crate::rig::instant::nanos;
use crate::rig::process::told;
use crate::rig::run::{HEAVIEST, LIFE, run};
use crate::zookeeper::{TICK, Zookeeper};
use crate::zookeeper_steps::at;
use std::sync::{Arc, mpsc};

#[test]
#[ignore = "a process of the rig"]
fn a_contender() {
    let plan: Plan = told().expect("started by the rig");
    let writer = Arc::new(Writer::create(&plan.history).expect("a history"));
    let (stop, stopped) = mpsc::channel();
    let watching = Arc::clone(&writer).watch_stalls(plan.process, stopped);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let gate = gate(at(plan.store), &plan.name, plan.limit, plan.ttl);
        contend(plan, writer, gate).await;
    });
    drop(stop);
    watching.join().expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_seconds_of_everything_that_can_go_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let connect = async |address, name: &str, limit, ttl| gate(at(address), name, limit, ttl);
    let report = run(Zookeeper, "zookeeper_faults::a_contender", folder.path(), connect)
        .await
        .expect("a run");
    println!("{report:#?}");
    if !report.faults.is_empty() {
        panic!(
            "{} faults; the histories are in {}",
            report.faults.len(),
            folder.keep().display()
        );
    }
    // Everything was tried: permits were lost, waits were given up, also at their grants, and whoever went held something.
    assert!(report.granted > 0 && report.lost > 0 && report.cancelled_at_the_grant > 0);
    assert!(report.recoveries.len() == 4 && report.recoveries.iter().all(|recovery| recovery.weight >= HEAVIEST));
    // The bar of the run is for clients that are heard late, or hear nothing themselves, as the first one is; whoever is not heard
    // is missed sooner.
    let soon = nanos(LIFE + LIFE / 10 + TICK);
    for recovery in &report.recoveries[1..] {
        let took = recovery.took.expect("it recovered");
        assert!(took <= soon + recovery.stalled, "{recovery:?}");
    }
}
