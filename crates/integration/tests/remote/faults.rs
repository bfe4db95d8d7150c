//! The run, against Redis.

use crate::minute::{contender, minute, tried_tenants};
use crate::redis::Redis;
use crate::store::at;

#[test]
#[ignore = "a process of the rig"]
fn a_contender() {
    contender(at);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_seconds_of_everything_that_can_go_wrong() {
    tried_tenants(&minute(Redis, "faults::a_contender", at).await);
}
