//! The run, against Consul: a server that keeps what it knows over a restart, and whose sessions last twice as long as they say.

use crate::consul::Consul as Program;
use crate::consul_store::Kind;
use crate::gate::gate;
use crate::rig::contender::{Plan, contend};
use crate::rig::history::Writer;
use crate::rig::process::told;
use crate::rig::run::{HEAVIEST, run};
use std::sync::{Arc, mpsc};
use tollgate::remote::{Consul, ConsulSlots};

fn contender<B: Kind>() {
    let plan: Plan = told().expect("started by the rig");
    let writer = Arc::new(Writer::create(&plan.history).expect("a history"));
    let (stop, stopped) = mpsc::channel();
    let watching = Arc::clone(&writer).watch_stalls(plan.process, stopped);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let gate = gate(B::at(plan.store), &plan.name, plan.limit, plan.ttl);
        contend(plan, writer, gate).await;
    });
    drop(stop);
    watching.join().expect("it ends");
}

#[test]
#[ignore = "a process of the rig"]
fn a_contender_for_the_document() {
    contender::<Consul>();
}

#[test]
#[ignore = "a process of the rig"]
fn a_contender_for_slots() {
    contender::<ConsulSlots>();
}

async fn sixty_seconds<B: Kind>(contender: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let connect = async |address, name: &str, limit, ttl| gate(B::at(address), name, limit, ttl);
    let report = match run(Program, contender, folder.path(), connect).await {
        Ok(report) => report,
        Err(error) => panic!("{error}; the histories are in {}", folder.keep().display()),
    };
    println!("{report:#?}");
    if !report.faults.is_empty() {
        panic!(
            "{} faults; the histories are in {}",
            report.faults.len(),
            folder.keep().display()
        );
    }
    assert!(report.granted > 0 && report.lost > 0 && report.cancelled_at_the_grant > 0);
    assert!(report.recoveries.len() == 4 && report.recoveries.iter().all(|recovery| recovery.weight >= HEAVIEST));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_seconds_of_everything_that_can_go_wrong_with_a_document() {
    sixty_seconds::<Consul>("consul_faults::a_contender_for_the_document").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_seconds_of_everything_that_can_go_wrong_with_slots() {
    sixty_seconds::<ConsulSlots>("consul_faults::a_contender_for_slots").await;
}
