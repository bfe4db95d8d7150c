//! The run, against etcd.

use crate::etcd::Etcd;
use crate::etcd_steps::at;
use crate::gate::gate;
use crate::rig::contender::{Plan, contend};
use crate::rig::history::Writer;
use crate::rig::process::told;
use crate::rig::run::{HEAVIEST, run};
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
    let report = run(Etcd, "etcd_faults::a_contender", folder.path(), connect)
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
}
