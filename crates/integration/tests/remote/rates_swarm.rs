//! Processes that take one step and die, at stores that keep a clock of their own: what comes while none of them looks on is
//! there for the next.

use crate::rates_shared::Place;
use crate::speaker::{SHORT, Speaker};
use crate::store::key;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tollgate::Quota;
use tollgate::remote::Rule;

const BURST: u64 = 30;
const RATE: u64 = 10;
/// The most that come: if nothing came back, that would be for ever.
const MOST: u64 = 5_000;

/// Each takes two, until as many again have come, and the dead are forgotten.
async fn a_swarm_gets_the_whole_rate<P: Place>() {
    let key = key();
    let quota = Quota::per_second(RATE).burst(BURST);
    let begun = Instant::now();
    let (mut given, mut came, mut remembered) = (0, 0, 0);
    while given < 2 * BURST || remembered >= came / 2 {
        assert!(came < MOST, "{given} of {came}, of whom {remembered} are remembered");
        let store = P::store();
        let mut one = Speaker::new(&store, &key, Rule::Rate { quota }, 5 * SHORT);
        let reply = one.wish_if_not_busy(2).await;
        given += one.see(&reply);
        if reply.alive {
            came += 1;
            remembered = reply.census.sessions;
        }
        let most = BURST as f64 + RATE as f64 * begun.elapsed().as_secs_f64();
        assert!(given as f64 <= most, "{given} of {most}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_swarm_gets_the_whole_rate_in_etcd() {
    a_swarm_gets_the_whole_rate::<crate::rates_shared::etcd::Here>().await;
}

#[tokio::test]
async fn a_swarm_gets_the_whole_rate_in_zookeeper() {
    a_swarm_gets_the_whole_rate::<crate::rates_shared::zookeeper::Here>().await;
}
