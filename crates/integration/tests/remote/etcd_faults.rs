//! The run, against etcd.

use crate::etcd::{Etcd, LOOKS};
use crate::etcd_sync::at;
use crate::minute::{contender, minute, recovers_soon};

#[test]
#[ignore = "a process of the rig"]
fn a_contender() {
    contender(at);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_seconds_of_everything_that_can_go_wrong() {
    let report = minute(Etcd, "etcd_faults::a_contender", at).await;
    recovers_soon(&report, LOOKS);
}
