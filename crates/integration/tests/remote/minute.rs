//! The run, against a store: a minute of everything that can go wrong.

use crate::gate::gate;
use crate::rig::checker::Report;
use crate::rig::contender::{Plan, contend};
use crate::rig::history::Writer;
use crate::rig::instant::nanos;
use crate::rig::process::parameters;
use crate::rig::run::{HEAVIEST, LIFE, run};
use crate::rig::server::Store;
use crate::rig::tenants::{PERMITS, PERMITS_LEG, TENANTS};
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tollgate::remote::Backend;

/// A process of the rig, connected by `at`.
pub(crate) fn contender<B: Backend + Clone>(at: impl FnOnce(SocketAddr) -> B) {
    let plan: Plan = parameters().expect("started by the rig");
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

/// Plays the run with the test `contender`: there must be no fault, and everything must have been tried.
pub(crate) async fn minute<B: Backend + Clone>(
    program: impl Store,
    contender: &str,
    at: impl Fn(SocketAddr) -> B,
) -> Report {
    let folder = tempfile::tempdir().expect("a folder");
    let connect = async |address, name: &str, limit, ttl| gate(at(address), name, limit, ttl);
    let report = match run(program, contender, folder.path(), connect).await {
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
    // The rate and the window were granted, also during the faults, if the store has them.
    assert!(report.spent.iter().all(|(_, count)| *count > 0), "{:?}", report.spent);
    // Permits were lost, waits were given up, also at their grants, and every process that went held something.
    assert!(report.granted > 0 && report.lost > 0 && report.cancelled_at_the_grant > 0);
    assert!(report.recoveries.len() == 4 && report.recoveries.iter().all(|recovery| recovery.weight >= HEAVIEST));
    report
}

/// The minute in a module of its own, and what the report must show besides.
macro_rules! faults {
    ($name:ident, $program:expr, $at:expr, $shows:expr) => {
        mod $name {
            use super::*;

            #[test]
            #[ignore = "a process of the rig"]
            fn a_contender() {
                $crate::minute::contender($at);
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sixty_seconds_of_everything_that_can_go_wrong() {
                let shows: fn(&$crate::rig::checker::Report) = $shows;
                shows(&$crate::minute::minute($program, &$crate::minute::entry(module_path!()), $at).await);
            }
        }
    };
}
pub(crate) use faults;

/// The process of a module of this binary.
pub(crate) fn entry(module: &str) -> String {
    let (_, module) = module.split_once("::").expect("a module of this binary");
    format!("{module}::a_contender")
}

/// Tenants were beside the semaphore, and everything was tried there too: refusals by each leg, waits, returns, permits that were
/// lost, and processes that went with some.
pub(crate) fn tried_tenants(report: &Report) {
    assert_eq!(report.tenants.len(), TENANTS.len());
    for (tenant, report) in TENANTS.iter().zip(&report.tenants) {
        let refused = |by| report.refusals.get(by).copied().unwrap_or(0);
        let refusals = [refused(tenant.name), refused(PERMITS_LEG)];
        let given_up = report.cancelled_at_the_grant;
        let tried = [
            report.granted,
            report.waited,
            report.returned,
            given_up,
            refusals[0],
            refusals[1],
        ];
        assert!(tried.iter().all(|&count| count > 0), "{}: {tried:?}", tenant.name);
    }
    let busy = report.tenants.last().expect("there are some");
    assert!(busy.lost > 0 && busy.most == PERMITS, "{busy:?}");
    assert!(busy.recoveries.len() == 4 && busy.recoveries.iter().all(|recovery| recovery.weight >= HEAVIEST));
}

/// The bar of the run is for clients that are heard late, or hear nothing themselves, as the first one is. A client that is not
/// heard is missed sooner: after its time to live and a tenth, and the store's delay.
pub(crate) fn recovers_soon(report: &Report, late: Duration) {
    let soon = nanos(LIFE + LIFE / 10 + late);
    for recovery in &report.recoveries[1..] {
        let took = recovery.took.expect("it recovered");
        assert!(took <= soon + recovery.stalled, "{recovery:?}");
    }
}
