//! Maps by key against one bucket for each key, none of which is ever dropped: which keys there are, which one gives way to a new one,
//! and what each may take.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tollgate::keyed::KeyedRate;
use tollgate::{Inherit, Keyed, ManualClock, Quota, Reason, TokenBucket};

const KEYS: u8 = 8;
const NANO: Duration = Duration::from_nanos(1);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Take {
        key: u8,
        n: u64,
    },
    /// A handle is kept.
    Hold(u8),
    LetGo(usize),
    Weaken(usize),
    Remove(u8),
    Evict,
    SetQuota {
        key: u8,
        quota: usize,
        rule: Inherit,
    },
    Advance(u64),
}

impl Op {
    pub(crate) fn decode([which, a, b]: [u8; 3]) -> Self {
        let key = a % KEYS;
        let rule = [Inherit::AsIs, Inherit::Proportional, Inherit::Reset][usize::from(b / 8 % 3)];
        match which % 24 {
            0..9 => Self::Take {
                key,
                n: u64::from(b % 5),
            },
            9..12 => Self::Hold(key),
            12..14 => Self::LetGo(a.into()),
            14 => Self::Weaken(a.into()),
            15 => Self::Remove(key),
            16 => Self::Evict,
            17..20 => Self::SetQuota {
                key,
                quota: usize::from(b % 3),
                rule,
            },
            _ => Self::Advance(u64::from(u16::from_le_bytes([a, b])) % 4_000),
        }
    }
}

/// The first is that of each new key.
fn quotas() -> [Quota; 3] {
    [
        Quota::per_second(1).burst(3),
        Quota::per_second(2).burst(5),
        Quota::zero().burst(2),
    ]
}

fn bucket(clock: &ManualClock) -> TokenBucket {
    TokenBucket::new(quotas()[0]).on(clock)
}

enum Handle {
    Strong(Arc<TokenBucket>),
    Weak(#[expect(dead_code, reason = "an entry with a weak handle stays as well")] std::sync::Weak<TokenBucket>),
}

/// The map, the bucket of each key that it has, and handles.
struct Pair {
    clock: ManualClock,
    map: Keyed<u8, TokenBucket>,
    twins: BTreeMap<u8, TokenBucket>,
    /// Those whose quota was changed, and not unset since.
    changed: BTreeSet<u8>,
    overflow: Option<TokenBucket>,
    max: usize,
    /// With the key that they hold in the map, if it is there.
    held: Vec<(Option<u8>, Handle)>,
}

impl Pair {
    /// The keys that may give way to a new one.
    fn as_new(&self) -> Vec<u8> {
        let held = |key| self.held.iter().any(|(holds, _)| *holds == Some(key));
        let may_go = |(key, twin): (&u8, &TokenBucket)| {
            let untouched = !self.changed.contains(key) && twin.available() == twin.quota().burst_size();
            (untouched && !held(*key)).then_some(*key)
        };
        self.twins.iter().filter_map(may_go).collect()
    }

    /// `key` was asked for: one that may go has gone if there was no room. False when there is no place for it.
    fn ask(&mut self, key: u8) -> bool {
        if self.twins.contains_key(&key) {
            return true;
        }
        if self.twins.len() == self.max {
            let may_go = self.as_new();
            let gone: Vec<_> = may_go.iter().filter(|key| self.map.peek(*key).is_none()).collect();
            assert_eq!(gone.len(), may_go.len().min(1), "{gone:?} of {may_go:?}");
            let Some(gone) = gone.first() else { return false };
            self.twins.remove(*gone);
        }
        self.twins.insert(key, bucket(&self.clock));
        self.changed.remove(&key);
        true
    }

    fn get(&mut self, key: u8) -> Option<Arc<TokenBucket>> {
        let found = self.map.get(&key);
        let there = self.ask(key);
        assert_eq!(found.is_ok(), there || self.overflow.is_some());
        assert_eq!(self.map.peek(&key).is_some(), there);
        if let (true, Ok(found)) = (there, &found) {
            assert!(Arc::ptr_eq(found, &self.map.peek(&key).unwrap()));
        }
        found.ok()
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Take { key, n } => {
                let Some(limiter) = self.get(key) else { return };
                let twin = self.twins.get(&key).or(self.overflow.as_ref()).unwrap();
                match (limiter.try_acquire(n), twin.try_acquire(n)) {
                    (Ok(()), Ok(())) => {}
                    (Err(ours), Err(theirs)) => assert_eq!(ours.retry_after(), theirs.retry_after()),
                    (ours, theirs) => panic!("{ours:?} and {theirs:?}"),
                };
            }
            Op::Hold(key) => {
                let limiter = self.get(key);
                let holds = self.twins.contains_key(&key).then_some(key);
                self.held
                    .extend(limiter.map(|limiter| (holds, Handle::Strong(limiter))));
            }
            Op::LetGo(at) if !self.held.is_empty() => drop(self.held.swap_remove(at % self.held.len())),
            Op::Weaken(at) if !self.held.is_empty() => {
                let at = at % self.held.len();
                if let Handle::Strong(limiter) = &self.held[at].1 {
                    self.held[at].1 = Handle::Weak(Arc::downgrade(limiter));
                }
            }
            Op::LetGo(_) | Op::Weaken(_) => {}
            Op::Remove(key) => {
                assert_eq!(self.map.remove(&key).is_some(), self.twins.remove(&key).is_some());
                for (holds, _) in &mut self.held {
                    *holds = holds.filter(|holds| *holds != key);
                }
            }
            Op::Evict => {
                let may_go = self.as_new();
                assert_eq!(self.map.evict_as_new(), may_go.len());
                self.twins.retain(|key, _| !may_go.contains(key));
            }
            Op::SetQuota { key, quota, rule } => {
                let changed = self
                    .map
                    .entry(&key)
                    .map(|bucket| bucket.set_quota(quotas()[quota], rule));
                assert_eq!(changed.is_ok(), self.ask(key));
                if let Some(twin) = self.twins.get(&key) {
                    if twin.quota() != quotas()[quota] {
                        self.changed.insert(key);
                    }
                    twin.set_quota(quotas()[quota], rule);
                }
            }
            Op::Advance(millis) => self.clock.advance(Duration::from_millis(millis)),
        }
    }

    /// A walk finds each key once, with what it may take.
    fn compare(&self) {
        let state = |bucket: &TokenBucket| (bucket.quota(), bucket.available(), bucket.debt());
        let mut walked = Vec::new();
        self.map.for_each(|key, bucket| walked.push((*key, state(bucket))));
        walked.sort_by_key(|(key, _)| *key);
        let twins: Vec<_> = self.twins.iter().map(|(key, twin)| (*key, state(twin))).collect();
        assert_eq!(walked, twins);
        assert_eq!(self.map.len(), self.twins.len());
    }
}

/// A map of at most `max` keys.
pub(crate) fn run(max: usize, overflow: bool, siphash: bool, ops: Vec<Op>) {
    let clock = ManualClock::new();
    let on = clock.clone();
    let mut map = Keyed::new(max, move |_: &u8| bucket(&on));
    if siphash {
        map = map.siphash();
    }
    if overflow {
        map = map.overflow(bucket(&clock));
    }
    let mut pair = Pair {
        overflow: overflow.then(|| bucket(&clock)),
        twins: BTreeMap::new(),
        changed: BTreeSet::new(),
        held: Vec::new(),
        clock,
        map,
        max,
    };
    for op in ops {
        pair.step(op);
        pair.compare();
    }
    pair.held.clear();
    // With time each key may go that has not another quota.
    for key in pair.changed.clone() {
        pair.step(Op::Remove(key));
    }
    pair.clock.advance(Duration::from_secs(1_000));
    pair.step(Op::Evict);
    assert!(pair.map.is_empty());
}

/// A key, what it takes, and how long it waits before, in 65,536ths of a token's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    key: u64,
    n: u64,
    pause: u16,
}

impl Ask {
    pub(crate) fn decode([which, a, b]: [u8; 3]) -> Self {
        Self {
            key: u64::from(which % 6),
            n: u64::from(which / 6 % 12),
            pause: u16::from_le_bytes([a, b]),
        }
    }
}

/// A rate by key, of `count` in `seconds`: every verdict and every time to wait is that of a bucket of the key's own, as long as there is
/// room. A refusal for want of room comes only while all keys that have one are limited. A key that gave way while it was full comes back
/// with whole tokens, so it may wait for a nanosecond longer.
pub(crate) fn rate(count: u64, seconds: u64, burst: u64, max: usize, asks: Vec<Ask>) {
    let quota = Quota::new(count, Duration::from_secs(seconds)).unwrap().burst(burst);
    let clock = ManualClock::new();
    let rates = KeyedRate::new(max, quota).on(&clock);
    let buckets: Vec<_> = (0..6).map(|_| TokenBucket::new(quota).on(&clock)).collect();
    for Ask { key, n, pause } in asks {
        // Up to two tokens' time, whatever the quota is.
        let token = seconds * 1_000_000_000 / count;
        clock.advance(Duration::from_nanos(token * u64::from(pause) / 32_768));
        let bucket = &buckets[key as usize];
        match rates.try_acquire(&key, n) {
            Ok(()) => assert!(bucket.try_acquire(n).is_ok()),
            Err(refused) if refused.reason() == Reason::Saturated => {
                let limited = buckets.iter().filter(|bucket| bucket.available() < burst).count();
                assert!(limited >= max, "{limited} of {max} are limited");
                continue;
            }
            Err(refused) => match (refused.retry_after(), bucket.time_until(n)) {
                (Some(ours), Some(theirs)) => {
                    assert!((theirs..=theirs + NANO).contains(&ours), "{ours:?} and {theirs:?}");
                }
                (ours, theirs) => assert_eq!(ours, theirs),
            },
        }
        let (ours, theirs) = (rates.available(&key), bucket.available());
        assert!(
            (theirs.saturating_sub(1)..=theirs).contains(&ours),
            "{ours} of {theirs}"
        );
        assert!(rates.len() <= max);
    }
}
