//! The run, against Consul: a server that keeps its data over a restart, and whose sessions last twice as long as they say.

use crate::consul::Consul as Program;
use crate::consul_store::Kind;
use crate::minute::{contender, minute};
use tollgate_stores::{Consul, ConsulSlots};

#[test]
#[ignore = "a process of the rig"]
fn a_contender_for_the_document() {
    contender(<Consul as Kind>::at);
}

#[test]
#[ignore = "a process of the rig"]
fn a_contender_for_slots() {
    contender(ConsulSlots::at);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_seconds_of_everything_that_can_go_wrong_with_a_document() {
    minute(
        Program,
        "consul_faults::a_contender_for_the_document",
        <Consul as Kind>::at,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_seconds_of_everything_that_can_go_wrong_with_slots() {
    minute(Program, "consul_faults::a_contender_for_slots", ConsulSlots::at).await;
}
