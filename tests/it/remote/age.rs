//! Stores that cannot do everything, and stores whose sessions are not renewed by syncs.

use crate::remote::world::now;
use std::sync::Arc;
use std::time::Duration;
use tollgate::ManualClock;
use tollgate::remote::{Backend, Key, Memory, Remote, RemoteError, Rule, Session, StoreError, SyncReply, SyncRequest};

const TTL: Duration = Duration::from_secs(10);

/// Sessions were renewed so long before each step, and there are three permits at most.
struct Aged(Memory, Duration);

impl Backend for Aged {
    fn supports(&self, rule: &Rule, _: Duration) -> Result<(), RemoteError> {
        match rule {
            Rule::Permits { limit: ..=3 } => Ok(()),
            _ => Err(RemoteError::Unsupported {
                what: "more than three permits",
                store: "a small store",
            }),
        }
    }

    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        let mut reply = self.0.sync(key, rule, sync).await?;
        reply.age = self.1;
        Ok(reply)
    }

    fn notified(&self, key: &Key, session: Session) -> impl Future<Output = ()> + Send {
        self.0.notified(key, session)
    }
}

fn limiter(clock: &ManualClock, limit: u64, age: Duration) -> Result<Remote<Aged>, RemoteError> {
    let store = Aged(Memory::new(clock), age);
    let remote = Remote::permits(Key::new("key")?, limit).ttl(TTL).on(clock);
    remote.in_place(store)
}

fn clock() -> ManualClock {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1_000));
    clock
}

#[test]
fn a_lease_counts_from_the_last_renewal() {
    for age in [Duration::ZERO, Duration::from_secs(2)] {
        let remote = limiter(&clock(), 1, age).unwrap();
        let permit = now(remote.acquire(1)).unwrap();
        assert_eq!(permit.good_for(), Some(TTL - TTL / 100 - age));
    }
}

#[test]
fn a_renewal_is_due_by_the_last_one() {
    let clock = clock();
    let age = Duration::from_secs(2);
    let remote = limiter(&clock, 1, age).unwrap();
    let permit = now(remote.acquire(1)).unwrap();
    let syncs = remote.stats().syncs;
    clock.advance(TTL / 3 - age - Duration::from_millis(1));
    assert_eq!(remote.stats().syncs, syncs);
    clock.advance(Duration::from_millis(1));
    assert_eq!(remote.stats().syncs, syncs + 1);
    assert!(!permit.is_lost());
}

#[test]
fn missing_capabilities_are_reported_when_a_limiter_is_built() {
    let clock = clock();
    let unsupported = |error: &RemoteError| matches!(error, RemoteError::Unsupported { .. });
    assert!(unsupported(&limiter(&clock, 4, Duration::ZERO).map(drop).unwrap_err()));
    let remote = limiter(&clock, 3, Duration::ZERO).unwrap();
    assert!(unsupported(&now(remote.set_limit(4)).unwrap_err()));
    now(remote.set_limit(2)).unwrap();
    let shared = Arc::new(Aged(Memory::new(&clock), Duration::ZERO));
    let rate = Remote::rate(Key::new("key").unwrap(), tollgate::Quota::per_second(1));
    let refused = rate.in_place(shared).map(drop).unwrap_err();
    assert_eq!(refused.to_string(), "a small store cannot do more than three permits");
}

/// The store says that syncs do not renew, and has not renewed: it is not asked again at once, for ever.
#[test]
fn a_renewal_that_did_not_come_is_not_asked_for_at_once() {
    let clock = clock();
    let remote = limiter(&clock, 1, TTL / 2).unwrap();
    let permit = now(remote.acquire(1)).unwrap();
    let syncs = remote.stats().syncs;
    clock.advance(TTL / 4);
    assert!(remote.stats().syncs - syncs <= 4, "{}", remote.stats().syncs - syncs);
    assert!(!permit.is_lost());
}
