//! One step at a key with several legs, some of which may be counted at other keys: what is taken from all of them, or from none, as data.

use super::backend::Rule;
use super::key::Key;
use super::model::micros;
use std::time::Duration;

/// Units of each leg, in the order of the legs; zero of a leg that does not count, and beyond the last.
pub type LegUnits = [u64; KeyLeg::MOST];

/// A leg of a key.
///
/// ```
/// # use tollgate::remote::{Key, KeyLeg, Rule};
/// # use tollgate::Quota;
/// let own = KeyLeg::new("calls", Rule::Rate { quota: Quota::per_second(10) });
/// // Of the tenant's organisation.
/// let shared = KeyLeg { key: Some(Key::new("limits:acme")?), ..own.clone() };
/// assert!(own.key.is_none() && shared.key.is_some());
/// assert_eq!(KeyLeg::units([3])[..2], [3, 0]);
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyLeg {
    /// Its name. What was taken is kept under it.
    pub name: Box<str>,
    /// Another rule than that of the step before takes effect at once, and what was taken stays taken.
    pub rule: Rule,
    /// The key at which it is counted, if that is another one than the key of the step, such as that of the tenant's organisation. Permits
    /// are counted at the key of the step.
    pub key: Option<Key>,
}

impl KeyLeg {
    /// The most legs of a step.
    pub const MOST: usize = 16;

    /// A leg that is counted at the key of the step.
    pub fn new(name: impl Into<Box<str>>, rule: Rule) -> Self {
        let (name, key) = (name.into(), None);
        Self { name, rule, key }
    }

    /// The units of the first legs; zero of the others.
    pub fn units<const N: usize>(first: [u64; N]) -> LegUnits {
        let mut units = LegUnits::default();
        units.iter_mut().zip(first).for_each(|(units, n)| *units = n);
        units
    }
}

/// One step at a key, and at those of legs that are counted at others: first changes of reservations, then corrections of earlier
/// admissions, then new ones, each from all legs or from none.
///
/// A client has one step at a key under way at a time, and repeats it until it is answered: a store carries it out once.
///
/// ```
/// # use tollgate::remote::model::KeyLegs;
/// # use tollgate::remote::{KeyLeg, Rule, Step};
/// # use tollgate::Quota;
/// # use std::time::Duration;
/// let rate = |count| Rule::Rate { quota: Quota::per_hour(count) };
/// let legs = [KeyLeg::new("calls", rate(5)), KeyLeg::new("tokens", rate(100))];
/// let mut step = Step::new(7, 1, Duration::from_secs(10));
/// step.takes = vec![KeyLeg::units([1, 80]), KeyLeg::units([1, 80]), KeyLeg::units([1, 20])];
/// let reply = KeyLegs::default().step(1_000, &legs, &step);
/// let taken: Vec<_> = reply.takes.iter().map(Result::is_ok).collect();
/// assert_eq!(taken, [true, false, true], "each from all legs, or from none");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The client, a random number.
    pub client: u64,
    /// Its number, which no other step of the client has.
    pub seq: u64,
    /// How long the store remembers the reply, for a step that is repeated.
    pub remember: Duration,
    /// Changes of what earlier admissions have reserved.
    pub reserved: Vec<Reserved>,
    /// How long the units that this step reserves are reserved, unless a later one renews them. Without it, what its admissions take of
    /// windows counts as used.
    pub reserve_for: Option<Duration>,
    /// Corrections.
    pub corrections: Vec<Correction>,
    /// Admissions, in order.
    pub takes: Vec<LegUnits>,
    /// Units that come back to each rate and window before the admissions, whatever took them and as far as they were taken: the grant of
    /// an operator. The reply has the usage of all legs then, also when all are zero.
    pub grant: Option<LegUnits>,
    /// What the client holds of permit legs. Without it, or without such a leg, no permits are given, and nothing is renewed or returned.
    pub lease: Option<KeyLease>,
}

/// The lease of a client at a key: its permits, and its place in the queue.
///
/// The store keeps both for the time to live after each step with a lease. There is one queue for each key, with one place for each client.
///
/// ```
/// # use tollgate::remote::model::KeyLegs;
/// # use tollgate::remote::{KeyLease, KeyLeg, Rule, Step};
/// # use std::time::Duration;
/// let legs = [KeyLeg::new("slots", Rule::Permits { limit: 1 })];
/// let mut step = Step::new(7, 1, Duration::from_secs(10));
/// step.takes.push(KeyLeg::units([1]));
/// step.lease = Some(KeyLease { ttl: Duration::from_secs(10), held: KeyLeg::units([]), waiting: 1 });
/// assert_eq!(KeyLegs::default().step(1_000, &legs, &step).takes, [Ok(())]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLease {
    /// The time to live.
    pub ttl: Duration,
    /// The units of each permit leg that the client holds, apart from the admissions of this step. Fewer than before are a return. More
    /// than the store knows are lost, and so are all others of the client.
    pub held: LegUnits,
    /// The position of the first admission that waits; the number of admissions for none.
    ///
    /// One that is admitted gives up the place of the client. The first of them that needs permits, and is refused for some time, leaves
    /// a place. Those behind it that need permits are refused like it. The place stays until no admission that waits is refused, or the
    /// lease ends.
    pub waiting: usize,
}

impl Step {
    /// An empty step.
    pub fn new(client: u64, seq: u64, remember: Duration) -> Self {
        Self {
            client,
            seq,
            remember,
            reserved: Vec::new(),
            reserve_for: None,
            corrections: Vec::new(),
            takes: Vec::new(),
            grant: None,
            lease: None,
        }
    }
}

/// Units of windows that admissions of one instant have reserved, and what has become of them.
///
/// A reservation counts until it ends, also where the client is not heard of any more. Then the store forgets it. A client that goes on
/// with one that has ended reserves it anew, whether there is room or not. So what was reserved is never lost to a client, and never lost
/// for the others.
///
/// ```
/// # use tollgate::remote::model::KeyLegs;
/// # use tollgate::remote::{KeyLeg, Reserved, Rule, Step};
/// # use std::time::Duration;
/// let (day, ttl) = (Duration::from_secs(86_400), Duration::from_secs(10));
/// let legs = [KeyLeg::new("tokens", Rule::Window { limit: 100, length: day })];
/// let mut key = KeyLegs::default();
/// let mut take = Step::new(7, 1, ttl);
/// take.reserve_for = Some(ttl);
/// take.takes.push(KeyLeg::units([90]));
/// let at = key.step(1_000_000, &legs, &take).at;
///
/// // 30 were used by now, and 60 stay reserved for another while.
/// let mut renew = Step::new(7, 2, ttl);
/// renew.reserve_for = Some(ttl);
/// renew.reserved.push(Reserved {
///     at,
///     until: Reserved::until(at, ttl),
///     before: KeyLeg::units([90]),
///     after: KeyLeg::units([60]),
///     used: KeyLeg::units([30]),
/// });
/// let renewed = key.step(5_000_000, &legs, &renew).at;
///
/// // Nothing is heard of the client. What it has used stays.
/// let mut other = Step::new(8, 1, ttl);
/// other.takes.push(KeyLeg::units([70]));
/// let refused = key.step(Reserved::until(renewed, ttl) - 1, &legs, &other);
/// assert!(refused.takes[0].is_err());
/// assert!(key.step(Reserved::until(renewed, ttl), &legs, &other).takes[0].is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// When they were taken: [`StepReply::at`] of that step.
    pub at: u64,
    /// The end of the reservation as it is, by [`until`](Self::until); zero when that is not known.
    pub until: u64,
    /// The units of each window that the store has reserved until then.
    pub before: LegUnits,
    /// The units that stay reserved, from now on for [`Step::reserve_for`].
    pub after: LegUnits,
    /// The units that count as used from now on.
    pub used: LegUnits,
}

impl Reserved {
    /// When a reservation ends that a step at `at` has made or renewed for `time`. It is rounded up to a quarter of `time`: a store
    /// remembers few ends, however many reservations there are.
    pub fn until(at: u64, time: Duration) -> u64 {
        let time = micros(time);
        at.saturating_add(time)
            .div_ceil((time / 4).max(1))
            .saturating_mul((time / 4).max(1))
    }
}

/// The units that an admission has used in the end.
///
/// Of a rate comes back at most what has not come back since by itself: `charged - rate x (now - at)`. Otherwise units would be there
/// twice. Of a window comes back what still counts.
///
/// ```
/// # use tollgate::remote::model::KeyLegs;
/// # use tollgate::remote::{Correction, KeyLeg, Rule, Step};
/// # use tollgate::Quota;
/// # use std::time::Duration;
/// let legs = [KeyLeg::new("tokens", Rule::Rate { quota: Quota::per_hour(10) })];
/// let (mut key, remember) = (KeyLegs::default(), Duration::from_secs(10));
/// let (ten, four) = (KeyLeg::units([10]), KeyLeg::units([4]));
/// let mut take = Step::new(7, 1, remember);
/// take.takes.push(ten);
/// let at = key.step(1_000, &legs, &take).at;
/// let mut settle = Step::new(7, 2, remember);
/// settle.corrections.push(Correction { at, charged: ten, actual: four });
/// settle.takes.push(KeyLeg::units([6]));
/// assert_eq!(key.step(2_000, &legs, &settle).takes, [Ok(())]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Correction {
    /// When they were taken: [`StepReply::at`] of that step.
    pub at: u64,
    /// The units of each leg as they are counted now.
    pub charged: LegUnits,
    /// The units that are to be counted. More than were charged count from now on.
    pub actual: LegUnits,
}

/// The reply to a [`Step`].
///
/// ```
/// # use tollgate::remote::model::KeyLegs;
/// # use tollgate::remote::{KeyLeg, Rule, Step};
/// # use tollgate::Quota;
/// # use std::time::Duration;
/// let legs = [KeyLeg::new("calls", Rule::Rate { quota: Quota::per_hour(1) })];
/// let (mut key, mut step) = (KeyLegs::default(), Step::new(7, 1, Duration::from_secs(10)));
/// step.takes.push(KeyLeg::units([1]));
/// let (reply, again) = (key.step(1_000, &legs, &step), key.step(2_000, &legs, &step));
/// assert_eq!((&reply.takes, reply.at, reply.lost), (&vec![Ok(())], 1_000, false));
/// assert_eq!(again, reply, "a repeated step acts once");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepReply {
    /// The instant by the store's clock, in microseconds.
    pub at: u64,
    /// All permits that the client held, apart from the admissions of this step, are lost.
    pub lost: bool,
    /// Of each admission, in order.
    pub takes: Vec<Result<(), StepRefusal>>,
    /// Of each leg, after a step with a [grant](Step::grant).
    pub usage: Vec<LegUsage>,
}

/// The usage of a leg, by the rule that is in force at the store.
///
/// ```
/// # use tollgate::remote::model::KeyLegs;
/// # use tollgate::remote::{KeyLeg, Rule, Step};
/// # use tollgate::Quota;
/// # use std::time::Duration;
/// let legs = [KeyLeg::new("calls", Rule::Rate { quota: Quota::per_hour(10) })];
/// let mut step = Step::new(7, 1, Duration::from_secs(10));
/// step.takes.push(KeyLeg::units([4]));
/// step.grant = Some(KeyLeg::units([]));
/// let usage = KeyLegs::default().step(1_000, &legs, &step).usage;
/// assert_eq!((usage[0].in_use, usage[0].after), (4, Some(Duration::ZERO)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegUsage {
    /// The units that were taken and have not come back, or the permits that are held.
    pub in_use: u64,
    /// In which time there is a unit of a rate or window, if none is taken before it; `None` for never, and of permits.
    pub after: Option<Duration>,
    /// The clients with a place for permits of this leg.
    pub waiting: u64,
}

/// An admission was refused: nothing was taken.
///
/// ```
/// # use tollgate::remote::model::KeyLegs;
/// # use tollgate::remote::{KeyLeg, Rule, Step, StepRefusal};
/// # use tollgate::Quota;
/// # use std::time::Duration;
/// let legs = [KeyLeg::new("calls", Rule::Rate { quota: Quota::per_hour(5) })];
/// let mut step = Step::new(7, 1, Duration::from_secs(10));
/// step.takes.push(KeyLeg::units([6]));
/// let reply = KeyLegs::default().step(1_000, &legs, &step);
/// assert_eq!(reply.takes, [Err(StepRefusal { leg: 0, after: None })], "never: it is more than the burst");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRefusal {
    /// The leg that admits last, by its position.
    pub leg: usize,
    /// In which time it admits, if nothing is taken from it before; `None` for never: it is more than its burst, or its limit. Of a permit
    /// leg: when enough leases end unless they are renewed. Permits may come back before.
    pub after: Option<Duration>,
}
