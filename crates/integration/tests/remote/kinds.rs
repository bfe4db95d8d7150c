//! Permits, a rate and a window of one name are three limits, at every store that has them.

use crate::raw_session::{LONG, RawSession};
use std::time::Duration;
use tollgate::Quota;
use tollgate::remote::{Backend, Key, Rule};

/// All permits of a limit are held while a rate and a window of the same name are used, used up, and have gone.
pub(crate) async fn are_independent(store: &impl Backend, key: &Key) {
    let permits = Rule::Permits { limit: 3 };
    let mut holder = RawSession::new(store, key, permits, LONG);
    assert_eq!(holder.request(3, true).await.grants.len(), 1);
    let quota = Quota::per_second(1_000).burst(20);
    let length = Duration::from_millis(64);
    for other in [Rule::Rate { quota }, Rule::Window { limit: 20, length }] {
        let mut other = RawSession::new(store, key, other, LONG);
        let all = other.request(20, false).await;
        assert_eq!(other.see(&all), 20, "{all:?}");
        tries(store, key, permits).await;
        // The taken units come back, and their state is deleted.
        tokio::time::sleep(length * 2).await;
        let again = other.request(20, false).await;
        assert_eq!(other.see(&again), 20, "{again:?}");
        other.end().await;
        tokio::time::sleep(length * 2).await;
        tries(store, key, permits).await;
    }
    let held = holder.look().await;
    assert_eq!(
        (held.alive, held.usage.in_use, held.usage.limit),
        (true, 3, 3),
        "{held:?}"
    );
    holder.end().await;
}

/// All permits are held: another session is granted none.
async fn tries(store: &impl Backend, key: &Key, permits: Rule) {
    let mut tries = RawSession::new(store, key, permits, LONG);
    let reply = tries.request(1, false).await;
    assert_eq!((reply.grants.len(), reply.usage.in_use), (0, 3), "{reply:?}");
    tries.end().await;
}

mod redis {
    use crate::store::opened;
    use tollgate::remote::Rule;

    #[tokio::test]
    async fn limiters_of_one_name_and_different_kinds_are_independent() {
        let (store, key) = opened(Rule::Permits { limit: 3 }).await;
        super::are_independent(&store, &key).await;
    }
}

mod slots {
    #[tokio::test]
    async fn an_impossible_head_is_refused_when_the_limit_is_lowered() {
        use crate::change::changes;
        let (store, key) = crate::consul_store::store::<tollgate_stores::ConsulSlots>();
        let make = |builder: tollgate::remote::RemoteBuilder| builder.ttl(super::LONG).spawn(store.clone()).unwrap();
        let changed = changes::an_impossible_head_is_refused_when_the_limit_is_lowered(&key, make);
        tokio::time::timeout(super::LONG / 6, changed)
            .await
            .expect("the next waiter is served");
    }
}
