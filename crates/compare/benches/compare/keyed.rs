//! One limiter per key.
//!
//! All admit. Keys are drawn in an order that neither side's memory follows.

use crate::harness::{Batch, Rows};
use crate::rate::{FAST, governor};
use dashmap::DashMap;
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota as GovernorQuota, RateLimiter};
use std::hint::black_box;
use std::num::NonZeroU32;
use tollgate::keyed::KeyedRate;
use tollgate::{Keyed, Quota, TokenBucket};

/// Repeats all keys in the order of a linear congruence.
fn each_key<'a>(n: u64, mut operation: impl FnMut(u64) + 'a) -> Batch<'a> {
    let mut key = 1u64;
    Box::new(move |times| {
        for _ in 0..times {
            key = key
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            operation(black_box(((key >> 32) * n) >> 32));
        }
    })
}

fn by_keys(rows: &Rows, name: &str, keys: u64) {
    let kinds = ["keyed rate", "keyed rate, siphash", "keyed bucket"];
    if !kinds.iter().any(|kind| rows.wants(&format!("{kind}/{name}"))) {
        return;
    }
    let quota = Quota::per_second(FAST.into());
    let bare = KeyedRate::new(2 * keys as usize, quota);
    let ours = Keyed::new(2 * keys as usize, move |_: &u64| TokenBucket::new(quota));
    let fast = NonZeroU32::new(FAST).expect("above zero");
    let theirs: DefaultKeyedRateLimiter<u64> = RateLimiter::keyed(GovernorQuota::per_second(fast));
    let by_hand: DashMap<u64, DefaultDirectRateLimiter> = DashMap::new();
    for key in 0..keys {
        assert!(ours.get(&key).is_ok_and(|bucket| bucket.try_acquire(1).is_ok()));
        assert!(bare.try_acquire(&key, 1).is_ok());
        assert!(theirs.check_key(&key).is_ok());
        by_hand.insert(key, governor(FAST, FAST));
    }
    let peers = || -> Vec<(&str, Batch<'_>)> {
        vec![
            (
                "governor keyed",
                each_key(keys, |key| {
                    black_box(theirs.check_key(&key).is_ok());
                }),
            ),
            (
                "dashmap+governor",
                each_key(keys, |key| {
                    let limiter = by_hand.entry(key).or_insert_with(|| governor(FAST, FAST));
                    black_box(limiter.check().is_ok());
                }),
            ),
        ]
    };
    let mut sides = vec![(
        "tollgate",
        each_key(keys, |key| {
            black_box(bare.try_acquire(&key, 1).is_ok());
        }),
    )];
    sides.extend(peers());
    rows.wall(&format!("keyed rate/{name}"), sides);
    let siphash = KeyedRate::new(2 * keys as usize, quota).siphash();
    for key in 0..keys {
        assert!(siphash.try_acquire(&key, 1).is_ok());
    }
    let mut sides = vec![(
        "tollgate",
        each_key(keys, |key| {
            black_box(siphash.try_acquire(&key, 1).is_ok());
        }),
    )];
    sides.extend(peers());
    rows.wall(&format!("keyed rate, siphash/{name}"), sides);
    drop(siphash);
    let mut sides = vec![(
        "tollgate",
        each_key(keys, |key| {
            black_box(ours.get(&key).is_ok_and(|bucket| bucket.try_acquire(1).is_ok()));
        }),
    )];
    sides.extend(peers());
    rows.wall(&format!("keyed bucket/{name}"), sides);
}

pub(crate) fn rows(rows: &Rows) {
    by_keys(rows, "1 key", 1);
    by_keys(rows, "1,000 keys", 1_000);
    by_keys(rows, "10,000 keys", 10_000);
    by_keys(rows, "1,000,000 keys", 1_000_000);
}
