//! The run, against PostgreSQL: a server that keeps its data over a restart.

use crate::minute::{contender, minute, tried_tenants};
use crate::postgres::{Program, at};

#[test]
#[ignore = "a process of the rig"]
fn a_contender() {
    contender(at);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_seconds_of_everything_that_can_go_wrong() {
    tried_tenants(&minute(Program, "postgres_faults::a_contender", at).await);
}
