//! What a map of keys takes while a client cycles through more keys than it may hold.
//!
//! A binary of its own, since counting bytes replaces the allocator. They are counted per thread.
#![cfg(not(tollgate_loom))]

use std::time::Duration;
use tollgate::keyed::KeyedRate;
use tollgate::{Keyed, ManualClock, Quota, TokenBucket};

/// Given an honest key that has used up its burst, when an attacker cycles `keys` keys, twice and then as time passes,
/// through a map of at most `max`, then the bytes stay within the stated bound, and neither the honest key nor any of the
/// attacker's gets a token more than its quota allows.
fn an_attacker_cycles(keys: u64, max: usize) -> u64 {
    const HONEST: u64 = u64::MAX;
    let clock = ManualClock::new();
    let quota = Quota::per_second(1).burst(2);
    let mut admitted = vec![0u8; keys as usize];
    let mut refused = 0;
    let bytes = allocation_counter::measure(|| {
        let for_all = clock.clone();
        let map = Keyed::new(max, move |_: &u64| TokenBucket::new(quota).on(&for_all));
        let attempt = |key: u64| map.get(&key).is_ok_and(|bucket| bucket.try_acquire(1).is_ok());
        assert!(attempt(HONEST) && attempt(HONEST) && !attempt(HONEST));
        for round in 0..4u8 {
            for key in 0..keys {
                if attempt(key) {
                    admitted[key as usize] += 1;
                    assert!(admitted[key as usize] <= 2 + round / 2, "key {key} in round {round}");
                } else {
                    refused += 1;
                }
            }
            assert!(map.len() <= max);
            // Two rounds at each instant. A second later those that took one may go, the others may not.
            if round % 2 == 1 {
                assert!(!attempt(HONEST));
                clock.advance(Duration::from_secs(1));
                assert!(attempt(HONEST) && !attempt(HONEST));
            }
        }
    });
    assert!(refused > 0);
    let stated = Keyed::new(max, move |_: &u64| TokenBucket::new(quota)).max_bytes() as u64;
    assert!(bytes.bytes_max <= stated, "{} of {stated}", bytes.bytes_max);
    assert_eq!(bytes.bytes_current, 0);
    bytes.bytes_max / max as u64
}

#[test]
fn an_attacker_with_many_keys_stays_within_the_bound() {
    let bytes = an_attacker_cycles(20_000, 4_000);
    println!("{bytes} bytes a key");
    an_attacker_cycles(500, 1);
    an_attacker_cycles(500, 100);
}

#[test]
#[ignore = "takes a minute; ci/deep runs it"]
fn an_attacker_with_a_million_keys_stays_within_the_bound() {
    let bytes = an_attacker_cycles(1_000_000, 100_000);
    println!("{bytes} bytes a key");
}

#[test]
fn the_stated_bytes_of_an_entry_are_near_the_measured() {
    let full = allocation_counter::measure(|| {
        let clock = ManualClock::new();
        let map = Keyed::new(1_000, move |_: &u64| TokenBucket::new(Quota::per_second(1)).on(&clock));
        for key in 0..1_000 {
            map.get(&key).unwrap();
        }
        std::mem::forget(map);
    });
    let entry = Keyed::<u64, TokenBucket>::ENTRY_BYTES as i64;
    println!("{} bytes a key, {entry} stated", full.bytes_current / 1_000);
    assert!(full.bytes_current <= 1_000 * entry + 1_000);
    assert!(full.bytes_current * 10 >= 1_000 * entry * 8);
}

/// The same attack on the map of bare rates, which takes a tenth.
fn an_attacker_cycles_bare_rates(keys: u64, max: usize) {
    const HONEST: u64 = u64::MAX;
    let clock = ManualClock::new();
    let mut admitted = vec![0u8; keys as usize];
    let bytes = allocation_counter::measure(|| {
        let map = KeyedRate::new(max, Quota::per_second(1).burst(2)).on(&clock);
        let attempt = |key: u64| map.try_acquire(&key, 1).is_ok();
        assert!(attempt(HONEST) && attempt(HONEST) && !attempt(HONEST));
        for round in 0..4u8 {
            for key in 0..keys {
                if attempt(key) {
                    admitted[key as usize] += 1;
                    assert!(admitted[key as usize] <= 2 + round / 2, "key {key} in round {round}");
                }
            }
            assert!(map.len() <= max);
            if round % 2 == 1 {
                assert!(!attempt(HONEST));
                clock.advance(Duration::from_secs(1));
                assert!(attempt(HONEST) && !attempt(HONEST));
            }
        }
    });
    let entry = KeyedRate::<u64>::ENTRY_BYTES as u64;
    println!(
        "{} bytes a key at the most, {entry} stated",
        bytes.bytes_max / max as u64
    );
    assert!(bytes.bytes_max <= max as u64 * entry * 3 / 2 + 8_192);
    assert_eq!(entry, 32);
}

#[test]
fn bare_rates_stay_within_the_bound() {
    an_attacker_cycles_bare_rates(100_000, 20_000);
}

#[test]
#[ignore = "takes a while; ci/deep runs it"]
fn bare_rates_stay_within_the_bound_against_a_million_keys() {
    an_attacker_cycles_bare_rates(1_000_000, 1_000_000);
    an_attacker_cycles_bare_rates(1_000_000, 100_000);
}

/// Given 100,000 keys of a remote limiter, 16 bytes each, with a rate, that were all used and whose handles are kept, then each takes at most
/// 200 bytes once it is idle, and nothing once its handle is gone.
#[cfg(feature = "remote")]
#[test]
fn an_idle_key_of_a_remote_limiter_takes_at_most_200_bytes() {
    use tollgate::remote::{
        Backend, Key, KeyLeg, KeyedLimits, Remote, RemoteError, RemoteLeg, Rule, Session, Step, StepReply, StoreError,
        SyncReply, SyncRequest,
    };
    /// A store of another machine, which admits all.
    struct Elsewhere;
    impl Backend for Elsewhere {
        async fn sync(&self, _: &Key, _: &Rule, _: &SyncRequest) -> Result<SyncReply, StoreError> {
            unreachable!("keys have steps")
        }
        async fn notified(&self, _: &Key, _: Session) {
            std::future::pending::<()>().await;
        }
        fn supports_steps(&self) -> Result<(), RemoteError> {
            Ok(())
        }
        async fn step(&self, _: &Key, _: &[KeyLeg], step: &Step) -> Result<StepReply, StoreError> {
            Ok(StepReply {
                at: 1,
                lost: false,
                takes: vec![Ok(()); step.takes.len()],
                usage: Vec::new(),
            })
        }
    }
    const KEYS: u64 = 100_000;
    let clock = ManualClock::new();
    let limits = KeyedLimits::new(KEYS as usize, "all", [RemoteLeg::rate("rate", Quota::per_second(10))]);
    let builder = Remote::keyed(Key::new("tenants").unwrap(), limits).on(&clock);
    let tenants = builder.in_place(Elsewhere).unwrap();
    let mut handles = Vec::with_capacity(KEYS as usize);
    let bytes = allocation_counter::measure(|| {
        for key in 0..KEYS {
            let handle = tenants.get(&format!("{key:016}")).unwrap();
            clock.run(async { drop(handle.acquire_now(1).await.unwrap()) });
            handles.push(handle);
        }
    });
    let handle = size_of_val(&handles[0]) as i64;
    let each = bytes.bytes_current / KEYS as i64 + handle;
    println!("{each} bytes a key, {handle} of them its handle");
    assert!(each <= 200, "{each}");
    let freed = allocation_counter::measure(|| drop(handles)).bytes_current;
    let left = (bytes.bytes_current + freed) / KEYS as i64;
    assert!(left <= 8, "{left} bytes of each key stay");
}
