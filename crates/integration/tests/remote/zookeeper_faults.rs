//! The run, against ZooKeeper.

use crate::minute::{contender, minute, recovers_soon};
use crate::zookeeper::{TICK, Zookeeper};
use crate::zookeeper_sync::at;

#[test]
#[ignore = "a process of the rig"]
fn a_contender() {
    contender(at);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_seconds_of_everything_that_can_go_wrong() {
    let report = minute(Zookeeper, "zookeeper_faults::a_contender", at).await;
    recovers_soon(&report, TICK);
}
