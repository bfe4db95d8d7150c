//! The legs of one key, taken from together: the reference of [`Backend::step`](crate::remote::Backend::step).

use super::bucket::{Bucket, Fill};
use super::{micros, segment};
use crate::remote::backend::Rule;
use crate::remote::key::Key;
use crate::remote::step::{KeyLeg, LegUnits, LegUsage, Reserved, Step, StepRefusal, StepReply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The rates, windows and permits of a key, by the names of the legs.
///
/// ```
/// use std::time::Duration;
/// use tollgate::remote::model::KeyLegs;
/// use tollgate::remote::{KeyLeg, Rule, Step, StepRefusal};
///
/// let rate = |quota: &str| Ok::<_, tollgate::QuotaError>(Rule::Rate { quota: quota.parse()? });
/// let legs = [
///     KeyLeg::new("requests", rate("1/s burst 9")?),
///     KeyLeg::new("tokens", rate("10/s burst 100")?),
/// ];
/// let mut step = Step::new(7, 1, Duration::from_secs(30));
/// step.takes = vec![KeyLeg::units([1, 60]), KeyLeg::units([1, 50])];
///
/// let mut key = KeyLegs::default();
/// let reply = key.step(1_000_000, &legs, &step);
/// let refusal = StepRefusal { leg: 1, after: Some(Duration::from_secs(1)) };
/// assert_eq!(reply.takes, [Ok(()), Err(refusal)]);
/// // The same step again takes nothing more.
/// assert_eq!(key.step(1_100_000, &legs, &step), reply);
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Debug, Default)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
pub struct KeyLegs {
    legs: BTreeMap<Box<str>, Counts>,
    /// The last step of each client that changed something: when it is forgotten, its number and its reply.
    replies: BTreeMap<u64, (u64, u64, StepReply)>,
    held: Held,
    now: u64,
}

/// The permits of a key, and its queue.
///
/// Invariant: no lease without units, and no client with two places. A place that was told is that of a client that asks again by itself.
#[derive(Debug, Default)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
struct Held {
    /// By client: when its lease ends, and its units by leg.
    leases: BTreeMap<u64, (u64, BTreeMap<Box<str>, u64>)>,
    /// In order.
    places: Vec<Place>,
    /// The clients that are to be told.
    notify: BTreeSet<u64>,
}

/// A place in the queue for permits.
#[derive(Debug)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
struct Place {
    client: u64,
    until: u64,
    /// By leg that it needs: with how many in use there is room for it, by the limit of its own client.
    rooms: BTreeMap<Box<str>, u64>,
    /// Whether its client was told, or comes by itself at the instant of a rate.
    told: bool,
}

/// What was taken of one leg.
#[derive(Clone, Debug)]
enum Counts {
    /// With the instant since when it counts by this rule. All that was taken before it has come back, or was taken by another rule.
    Rate(Bucket, Fill, u64),
    Window(Window),
    /// They are in the leases.
    Permits,
}

/// What was taken of a window. A segment counts until all of it has left the window.
#[derive(Clone, Debug)]
struct Window {
    /// The length of a segment in microseconds.
    segment: u64,
    /// The units that are used, by the number of the segment in which they were taken.
    used: BTreeMap<u64, u64>,
    /// The units that are reserved, by the end of the reservation and the number of the segment.
    reserved: BTreeMap<(u64, u64), u64>,
}

/// One leg during a step.
struct Leg<'a> {
    name: &'a str,
    rule: &'a Rule,
    /// The other key at which it is counted.
    key: Option<&'a Key>,
    counts: Counts,
}

impl KeyLegs {
    /// Carries out `step` at the instant `now`, in microseconds, with no leg at another key.
    pub fn step(&mut self, now: u64, legs: &[KeyLeg], step: &Step) -> StepReply {
        self.step_beside(&mut BTreeMap::new(), now, legs, step)
    }

    /// Carries out `step` at the instant `now`, in microseconds. `others` has the other keys, of which those of legs are added: it may
    /// forget those that [are empty](Self::is_empty).
    pub fn step_beside(
        &mut self,
        others: &mut BTreeMap<Key, Self>,
        now: u64,
        legs: &[KeyLeg],
        step: &Step,
    ) -> StepReply {
        // No key is asked at an instant before its last one.
        let keys = || legs.iter().filter_map(|leg| leg.key.as_ref());
        let instants = keys().map(|key| others.get(key).map_or(0, |other| other.now));
        let now = instants.chain([self.now]).fold(now, u64::max);
        self.now = now;
        keys().for_each(|key| others.entry(key.clone()).or_default().now = now);
        self.replies.retain(|_, reply| reply.0 > now);
        match self.replies.get(&step.client) {
            Some((_, seq, reply)) if *seq == step.seq => return reply.clone(),
            // A late copy of a step that was answered, or given up: the client awaits no reply.
            Some((_, seq, _)) if *seq > step.seq => {
                let refusal = StepRefusal { leg: 0, after: None };
                let takes = step.takes.iter().map(|_| Err(refusal)).collect();
                return StepReply {
                    at: now,
                    lost: false,
                    takes,
                    usage: Vec::new(),
                };
            }
            _ => {}
        }
        // Legs without permits say nothing of those that the client holds.
        let has_permits = legs.iter().any(|leg| matches!(leg.rule, Rule::Permits { .. }));
        let step = &Step {
            lease: step.lease.filter(|_| has_permits),
            ..step.clone()
        };
        // Corrections alone are of admissions by a rule that may be an old one.
        let adopts = !step.takes.is_empty();
        // What has all come back leaves no rule.
        let before = legs.iter().map(|leg| {
            let counted_at = match &leg.key {
                None => Some(&self.legs),
                Some(key) => others.get(key).map(|other| &other.legs),
            };
            counted_at?.get(&leg.name).cloned()
        });
        let before = before.map(|counts| counts.filter(|counts| !counts.is_fresh(now)));
        let begun = legs
            .iter()
            .zip(before)
            .map(|(leg, before)| Leg::begin(leg, before, adopts, now));
        let mut legs: Vec<Leg<'_>> = begun.collect();
        let reserve_until = step.reserve_for.map(|time| Reserved::until(now, time));
        for reserved in &step.reserved {
            for (n, leg) in legs.iter_mut().enumerate() {
                leg.change(reserved, n, reserve_until, now);
            }
        }
        for correction in &step.corrections {
            for (leg, (&charged, &actual)) in legs.iter_mut().zip(correction.charged.iter().zip(&correction.actual)) {
                leg.correct(correction.at, charged, actual, now);
            }
        }
        for (leg, &n) in legs.iter_mut().zip(step.grant.iter().flatten()) {
            leg.grant(n);
        }
        self.held.sweep(now);
        let is_known = self.held.knows(step.client);
        let lost = self.held.report(&legs, step, now);
        let mut waiter: Option<(LegUnits, StepRefusal)> = None;
        let mut takes = Vec::new();
        for (n, units) in step.takes.iter().enumerate() {
            let waits = step.lease.is_some_and(|lease| n >= lease.waiting) && needs(&legs, units).next().is_some();
            let taken = match waiter {
                Some((_, refusal)) if waits => Err(refusal),
                _ => self.take(&mut legs, step, units, now),
            };
            match &taken {
                // The place was that of this waiter: the next one goes behind the others.
                Ok(_) if waits => self.held.places.retain(|place| place.client != step.client),
                Err(refusal) if waits && waiter.is_none() && refusal.after.is_some() => {
                    waiter = Some((*units, *refusal));
                }
                _ => {}
            }
            takes.push(taken);
        }
        self.held.set_place(&legs, step, waiter, now);
        let tells = self.held.tell();
        let looked_at = legs.iter().filter(|_| step.grant.is_some());
        let usage = looked_at.map(|leg| leg.usage(&self.held, now)).collect();
        let reply = StepReply {
            at: now,
            lost,
            takes,
            usage,
        };
        let holds = step.lease.is_some() && (is_known || self.held.knows(step.client));
        let grants = step.grant.iter().flatten().take(legs.len()).any(|&n| n > 0);
        if step.corrections.is_empty()
            && step.reserved.is_empty()
            && !grants
            && !reply.takes.iter().any(Result::is_ok)
            && !holds
            && !tells
        {
            return reply;
        }
        for Leg { name, key, counts, .. } in legs {
            let counted_at = match key {
                None => &mut self.legs,
                Some(key) => &mut others.entry(key.clone()).or_default().legs,
            };
            if counts.is_fresh(now) {
                counted_at.remove(name);
            } else {
                counted_at.insert(name.into(), counts);
            }
        }
        let until = now.saturating_add(micros(step.remember));
        self.replies.insert(step.client, (until, step.seq, reply.clone()));
        reply
    }

    /// The clients with a place whose permits may be there now, since the last call: they ask again.
    pub fn take_notified(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.held.notify)
    }

    /// Takes from all legs, or from none. The refusal names the leg that admits last.
    fn take(&mut self, legs: &mut [Leg<'_>], step: &Step, units: &LegUnits, now: u64) -> Result<(), StepRefusal> {
        let mut refusal: Option<StepRefusal> = None;
        for (leg, (counted, &n)) in legs.iter().zip(units).enumerate() {
            let after = match counted.counts {
                Counts::Permits if n > 0 => self.held.wait(counted, n, step, now),
                _ => counted.wait(n, now),
            };
            let Some(after) = after else {
                return Err(StepRefusal { leg, after: None });
            };
            let after = Some(Duration::from_micros(after));
            if after > refusal.as_ref().map_or(Some(Duration::ZERO), |other| other.after) {
                refusal = Some(StepRefusal { leg, after });
            }
        }
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        if let Some(lease) = step.lease {
            let until = now.saturating_add(micros(lease.ttl));
            for (name, n) in needs(legs, units) {
                let lease = self.held.leases.entry(step.client);
                let (_, held) = lease.or_insert_with(|| (until, BTreeMap::new()));
                *held.entry(name.into()).or_default() += n;
            }
        }
        let until = step.reserve_for.map(|time| Reserved::until(now, time));
        for (leg, &n) in legs.iter_mut().zip(units) {
            leg.take(n, until, now);
        }
        Ok(())
    }

    /// True when it may be forgotten without a loss.
    pub fn is_empty(&self, now: u64) -> bool {
        let now = self.now.max(now);
        self.replies.values().all(|reply| reply.0 <= now)
            && self.legs.values().all(|counts| counts.is_fresh(now))
            && self.held.leases.values().all(|lease| lease.0 <= now)
            && self.held.places.iter().all(|place| place.until <= now)
    }
}

/// What `units` need of the permit legs.
fn needs<'a>(legs: &[Leg<'a>], units: &[u64]) -> impl Iterator<Item = (&'a str, u64)> {
    let permits = legs.iter().zip(units);
    permits.filter_map(|(leg, &n)| (n > 0 && matches!(leg.rule, Rule::Permits { .. })).then_some((leg.name, n)))
}

/// With how many in use there is room for `units`, by permit leg.
fn rooms(legs: &[Leg<'_>], units: &[u64]) -> BTreeMap<Box<str>, u64> {
    let is = |leg: &Leg<'_>, name: &str| leg.name == name && matches!(leg.rule, Rule::Permits { .. });
    let limit = |name: &str| legs.iter().find(|leg| is(leg, name)).map_or(0, Leg::limit);
    let rooms = needs(legs, units).map(|(name, n)| (name.into(), limit(name).saturating_sub(n)));
    rooms.collect()
}

impl Held {
    /// Drops the leases and places that have ended.
    fn sweep(&mut self, now: u64) {
        self.leases.retain(|_, lease| lease.0 > now);
        self.places.retain(|place| place.until > now);
    }

    /// True when a client has a lease or a place.
    fn knows(&self, client: u64) -> bool {
        self.leases.contains_key(&client) || self.places.iter().any(|place| place.client == client)
    }

    /// Sets the units of a client to those that it reports, and renews its lease. True when some of them are not known: then all are lost.
    fn report(&mut self, legs: &[Leg<'_>], step: &Step, now: u64) -> bool {
        let Some(lease) = &step.lease else { return false };
        let (_, mut units) = self.leases.remove(&step.client).unwrap_or_default();
        let permits = legs.iter().zip(&lease.held);
        for (leg, &held) in permits.filter(|(leg, _)| matches!(leg.rule, Rule::Permits { .. })) {
            let known = units.remove(leg.name).unwrap_or(0);
            if held > known {
                return true;
            }
            if held > 0 {
                units.insert(leg.name.into(), held);
            }
        }
        if !units.is_empty() {
            self.leases
                .insert(step.client, (now.saturating_add(micros(lease.ttl)), units));
        }
        false
    }

    fn used(&self, name: &str) -> u64 {
        self.leases.values().filter_map(|(_, units)| units.get(name)).sum()
    }

    /// In how many microseconds `n` permits of a leg are there unless leases and places are renewed; `None` when they never are.
    fn wait(&self, leg: &Leg<'_>, n: u64, step: &Step, now: u64) -> Option<u64> {
        step.lease?;
        let room = leg.limit().checked_sub(n)?;
        let ahead = self.places.iter().take_while(|place| place.client != step.client);
        let ahead = ahead.filter(|place| place.rooms.contains_key(leg.name));
        let mut until = ahead.map(|place| place.until).max().unwrap_or(now);
        let mut used = self.used(leg.name);
        let mut leases: Vec<_> = self.leases.values().collect();
        leases.sort_by_key(|lease| lease.0);
        for (end, units) in leases {
            if used <= room {
                break;
            }
            if let Some(held) = units.get(leg.name) {
                used -= held;
                until = until.max(*end);
            }
        }
        Some(until - now)
    }

    /// Leaves, renews or withdraws the place of a client, whose first refused waiter needs these units.
    fn set_place(&mut self, legs: &[Leg<'_>], step: &Step, waiter: Option<(LegUnits, StepRefusal)>, now: u64) {
        let Some(lease) = &step.lease else { return };
        let known = self.places.iter().position(|place| place.client == step.client);
        let by_permits = |refusal: &StepRefusal| matches!(legs[refusal.leg].rule, Rule::Permits { .. });
        let place = waiter.map(|(units, refusal)| Place {
            client: step.client,
            until: now.saturating_add(micros(lease.ttl)),
            rooms: rooms(legs, &units),
            told: !by_permits(&refusal),
        });
        match (known, place) {
            (Some(known), Some(place)) => self.places[known] = place,
            (Some(known), None) => _ = self.places.remove(known),
            (None, Some(place)) => self.places.push(place),
            (None, None) => {}
        }
    }

    /// Notes the clients with places whose permits are there. True if there are some.
    fn tell(&mut self) -> bool {
        let (mut ahead, mut tells) = (BTreeSet::new(), Vec::new());
        for (position, place) in self.places.iter().enumerate() {
            let mut rooms = place.rooms.iter();
            if !place.told && rooms.all(|(name, &room)| self.used(name) <= room && !ahead.contains(name)) {
                tells.push(position);
            }
            ahead.extend(place.rooms.keys());
        }
        for &position in &tells {
            let place = &mut self.places[position];
            place.told = true;
            self.notify.insert(place.client);
        }
        !tells.is_empty()
    }
}

impl<'a> Leg<'a> {
    /// The leg by its present rule, if the step `adopts` that. What was taken by another rule stays taken.
    fn begin(leg: &'a KeyLeg, before: Option<Counts>, adopts: bool, now: u64) -> Self {
        let counts = match (before, &leg.rule) {
            (Some(mut before), _) if !adopts => {
                before.advance(now);
                before
            }
            (Some(Counts::Rate(mut bucket, before, mut since)), Rule::Rate { quota }) => {
                let fill = Fill::of(quota).unwrap_or(before);
                // Time until now has passed by the rule before.
                bucket.advance(&before, now);
                if fill != before {
                    bucket.convert(&before, &fill);
                    since = now;
                }
                Counts::Rate(bucket, fill, since)
            }
            (_, Rule::Rate { quota }) => {
                let fill = Fill::of(quota).unwrap_or(Fill {
                    price: 1,
                    gain: 1,
                    brim: 0,
                });
                Counts::Rate(Bucket::full(now), fill, now)
            }
            (Some(Counts::Window(mut before)), Rule::Window { length, .. }) => {
                before.advance(now);
                Counts::Window(before.set_segment(segment(*length), now))
            }
            (_, Rule::Window { length, .. }) => Counts::Window(Window::new(segment(*length))),
            (_, Rule::Permits { .. }) => Counts::Permits,
        };
        Self {
            name: &leg.name,
            rule: &leg.rule,
            key: leg.key.as_ref(),
            counts,
        }
    }

    fn limit(&self) -> u64 {
        match self.rule {
            Rule::Window { limit, .. } | Rule::Permits { limit } => *limit,
            Rule::Rate { quota } => quota.burst_size(),
        }
    }

    /// In how many microseconds `n` fit, without others; `None` when they never do.
    fn wait(&self, n: u64, now: u64) -> Option<u64> {
        match &self.counts {
            _ if n == 0 => Some(0),
            Counts::Permits => None,
            Counts::Rate(bucket, fill, _) => bucket.wait(fill, n),
            Counts::Window(window) => {
                let room = self.limit().checked_sub(n)?;
                let mut left = window.total();
                if left <= room {
                    return Some(0);
                }
                // Reservations may be renewed, so their ends are no instants at which there is room.
                for (number, count) in window.by_segment() {
                    left -= count;
                    if left <= room {
                        return Some((number + Rule::SEGMENTS + 1) * window.segment - now);
                    }
                }
                None
            }
        }
    }

    fn add(&mut self, n: u64, now: u64) {
        match &mut self.counts {
            Counts::Rate(bucket, fill, _) => bucket.take(fill, n),
            Counts::Window(window) if n > 0 => *window.used.entry(now / window.segment).or_default() += n,
            Counts::Window(_) | Counts::Permits => {}
        }
    }

    /// Takes `n` units, of a window as a reservation that ends `until` then.
    fn take(&mut self, n: u64, until: Option<u64>, now: u64) {
        match (&mut self.counts, until) {
            (Counts::Window(window), Some(until)) => window.reserve(now, until, n, now),
            _ => self.add(n, now),
        }
    }

    /// Changes a reservation, unless a leg of another kind has its name now. What goes on ends `until` then.
    fn change(&mut self, reserved: &Reserved, leg: usize, until: Option<u64>, now: u64) {
        let (Counts::Window(window), Rule::Window { .. }) = (&mut self.counts, self.rule) else {
            return;
        };
        let number = reserved.at / window.segment;
        if let Some(units) = window.reserved.get_mut(&(reserved.until, number)) {
            *units = units.saturating_sub(reserved.before[leg]);
        }
        window.reserve(reserved.at, until.unwrap_or(reserved.until), reserved.after[leg], now);
        if reserved.used[leg] > 0 && window.counts_at(number, now) {
            *window.used.entry(number).or_default() += reserved.used[leg];
        }
    }

    /// Gives back `n` units that were used last, or as many as were.
    fn grant(&mut self, mut n: u64) {
        match (&mut self.counts, self.rule) {
            (Counts::Rate(bucket, fill, _), Rule::Rate { .. }) => {
                bucket.level = bucket.level.saturating_sub(n.saturating_mul(fill.price));
            }
            (Counts::Window(window), Rule::Window { .. }) => {
                for count in window.used.values_mut().rev() {
                    let part = n.min(*count);
                    *count -= part;
                    n -= part;
                }
            }
            _ => {}
        }
    }

    fn usage(&self, held: &Held, now: u64) -> LegUsage {
        let counted = |in_use| LegUsage {
            in_use,
            after: self.wait(1, now).map(Duration::from_micros),
            waiting: 0,
        };
        match (&self.counts, self.rule) {
            (Counts::Rate(bucket, fill, _), Rule::Rate { .. }) => counted(bucket.level.div_ceil(fill.price)),
            (Counts::Window(window), Rule::Window { .. }) => counted(window.total()),
            (_, Rule::Permits { .. }) => {
                let places = held.places.iter();
                let waiting = places.filter(|place| place.rooms.contains_key(self.name)).count();
                LegUsage {
                    in_use: held.used(self.name),
                    after: None,
                    waiting: waiting as u64,
                }
            }
            // A leg of another kind has its name now.
            _ => LegUsage {
                after: (self.limit() > 0).then_some(Duration::ZERO),
                ..LegUsage::default()
            },
        }
    }

    /// Corrects what was taken at the instant `at`, unless a leg of another kind has its name now.
    fn correct(&mut self, at: u64, charged: u64, actual: u64, now: u64) {
        let n = charged.saturating_sub(actual);
        match &mut self.counts {
            Counts::Rate(..) if !matches!(self.rule, Rule::Rate { .. }) => {}
            Counts::Window(..) if !matches!(self.rule, Rule::Window { .. }) => {}
            Counts::Permits => {}
            _ if n == 0 => self.add(actual - charged, now),
            Counts::Rate(_, _, since) if at < *since => {}
            Counts::Rate(bucket, fill, _) => {
                let gone = now.saturating_sub(at).saturating_mul(fill.gain);
                let left = charged.saturating_mul(fill.price).min(Fill::EXACT / 2);
                let left = left.saturating_sub(gone);
                bucket.level = bucket.level.saturating_sub(n.saturating_mul(fill.price).min(left));
            }
            Counts::Window(window) => {
                if let Some(count) = window.used.get_mut(&(at / window.segment)) {
                    *count = count.saturating_sub(n);
                }
            }
        }
    }
}

impl Window {
    fn new(segment: u64) -> Self {
        Self {
            segment,
            used: BTreeMap::new(),
            reserved: BTreeMap::new(),
        }
    }

    /// Whether a segment has not left the window.
    fn counts_at(&self, number: u64, now: u64) -> bool {
        number >= (now / self.segment).saturating_sub(Rule::SEGMENTS)
    }

    /// Drops what has left the window, and the reservations that have ended.
    fn advance(&mut self, now: u64) {
        let oldest = (now / self.segment).saturating_sub(Rule::SEGMENTS);
        self.used.retain(|&number, count| number >= oldest && *count > 0);
        self.reserved
            .retain(|&(until, number), count| until > now && number >= oldest && *count > 0);
    }

    /// Reserves `n` units as taken at `at`, if that counts at `now`.
    fn reserve(&mut self, at: u64, until: u64, n: u64, now: u64) {
        let number = at / self.segment;
        if n > 0 && until > now && self.counts_at(number, now) {
            *self.reserved.entry((until, number)).or_default() += n;
        }
    }

    fn total(&self) -> u64 {
        self.used.values().chain(self.reserved.values()).sum()
    }

    /// All units, by segment.
    fn by_segment(&self) -> BTreeMap<u64, u64> {
        let mut all = self.used.clone();
        for ((_, number), n) in &self.reserved {
            *all.entry(*number).or_default() += n;
        }
        all
    }

    /// The units of a window of another length count as taken now.
    fn set_segment(self, segment: u64, now: u64) -> Self {
        if self.segment == segment {
            return self;
        }
        let mut new = Self::new(segment);
        let used = self.used.values().sum::<u64>();
        new.used.extend((used > 0).then_some((now / segment, used)));
        for ((until, _), n) in self.reserved {
            new.reserve(now, until, n, now);
        }
        new
    }
}

impl Counts {
    fn advance(&mut self, now: u64) {
        match self {
            Self::Rate(bucket, fill, _) => bucket.advance(fill, now),
            Self::Window(window) => window.advance(now),
            Self::Permits => {}
        }
    }

    fn is_fresh(&self, now: u64) -> bool {
        match self {
            Self::Rate(bucket, fill, _) => bucket.is_full(fill, now),
            Self::Window(window) => {
                let gone = |number: u64, count: u64| count == 0 || !window.counts_at(number, now);
                let mut used = window.used.iter();
                let mut reserved = window.reserved.iter();
                used.all(|(&number, &count)| gone(number, count))
                    && reserved.all(|(&(until, number), &count)| until <= now || gone(number, count))
            }
            Self::Permits => true,
        }
    }
}
