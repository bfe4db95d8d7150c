//! Rates and windows that many machines share. A bucket has no queue: what is not there yet is granted for later, in the order of
//! asking. A window has one: whoever finds too little is told when to ask again, and keeps its place as long as it does so. Those
//! behind, and those who do not wait, are given what the places before them leave.
//!
//! Sessions are only remembered so that a step which is tried again takes nothing twice.

use super::bucket::{Bucket, Fill};
use super::{Outcome, micros, next_token};
use crate::rate::Meter;
use crate::rate::WindowMeter;
use crate::remote::backend::{Census, Grant, Reply, Rule, Session, Step, Wish};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The least time for those before to ask, in microseconds.
const PACE: u64 = 1_000;

#[derive(Debug)]
pub(crate) struct Rates {
    pub(super) meter: Kind,
    pub(super) rule: Rule,
    /// Above zero once the rule was changed while it was used.
    pub(super) edition: u64,
    /// When somebody last asked.
    pub(super) asked_at: u64,
    pub(super) token: u64,
    now: u64,
    pub(super) takers: BTreeMap<Session, Taker>,
    /// Those who wait for room in a window, in order. Each is a taker.
    pub(super) line: Vec<Place>,
    pub(super) dues: BTreeSet<(u64, Session)>,
    /// There is more room for those in line than there was.
    is_raised: bool,
}

/// What is counted: either of the two.
#[derive(Debug)]
pub(crate) enum Kind {
    Bucket(Bucket, Fill),
    Window(WindowMeter, Duration),
}

#[derive(Debug, Default)]
pub(super) struct Taker {
    pub(super) expires: u64,
    pub(super) seq: u64,
    pub(super) charged: u64,
    pub(super) asked: u64,
    pub(super) grants: Vec<Grant>,
    /// When the last of them may be used.
    pub(super) due: u64,
}

/// A session has one place, whichever of its wishes it is for.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) session: Session,
    pub(super) wish: u64,
    pub(super) need: u64,
}

impl Kind {
    pub(crate) fn new(rule: &Rule, now: u64) -> Self {
        match rule {
            Rule::Rate { quota } => {
                let fill = Fill::of(quota).unwrap_or(Fill {
                    price: 1,
                    gain: 1,
                    brim: 0,
                });
                Self::Bucket(Bucket::full(now), fill)
            }
            Rule::Permits { limit } => Self::window(now, *limit, Duration::ZERO),
            Rule::Window { limit, length } => Self::window(now, *limit, *length),
        }
    }

    fn window(now: u64, limit: u64, length: Duration) -> Self {
        let segments = Rule::SEGMENTS as usize;
        Self::Window(WindowMeter::new(now, segments, segment(length), limit), length)
    }

    /// Goes by other numbers; what was taken stays taken.
    pub(crate) fn adopt(&mut self, rule: &Rule) {
        match (self, rule) {
            (Self::Bucket(bucket, fill), Rule::Rate { quota }) => {
                let new = Fill::of(quota).unwrap_or(*fill);
                if new != *fill {
                    bucket.convert(fill, &new);
                    *fill = new;
                }
            }
            (Self::Window(window, _), Rule::Window { limit, .. }) if window.limit() != *limit => {
                let room = i128::from(*limit) - (i128::from(window.limit()) - window.room());
                window.set_limit(*limit, room);
            }
            _ => {}
        }
    }

    pub(crate) fn advance(&mut self, now: u64) {
        match self {
            Self::Bucket(bucket, fill) => bucket.advance(fill, now),
            Self::Window(window, _) => window.advance(now),
        }
    }

    fn free(&self) -> u64 {
        match self {
            Self::Bucket(bucket, fill) => bucket.free(fill),
            Self::Window(window, _) => window.free(),
        }
    }

    pub(crate) fn take(&mut self, n: u64) {
        match self {
            Self::Bucket(bucket, fill) => bucket.take(fill, n),
            Self::Window(window, _) => drop(window.take(n)),
        }
    }

    /// In how many microseconds `n` fit; `None` when they never do.
    pub(crate) fn wait(&self, n: u64) -> Option<u64> {
        match self {
            Self::Bucket(bucket, fill) => bucket.wait(fill, n),
            Self::Window(window, _) => Some(window.ready(n, 0)?.saturating_sub(window.now())),
        }
    }

    /// The same, for whoever comes after others who need `ahead` of a window. Not at once: those have to ask first.
    fn wait_behind(&self, n: u64, ahead: u64) -> Option<u64> {
        match self {
            Self::Window(window, length) if ahead > 0 => {
                let wait = window.ready(n, ahead)?.saturating_sub(window.now());
                Some(wait.max(segment(*length)).max(PACE))
            }
            _ => self.wait(n),
        }
    }

    pub(crate) fn fits(&self, n: u64) -> bool {
        n <= self.free()
    }

    /// Takes `n` for when they will have come, and says in how many microseconds that is, if it can be said.
    fn book(&mut self, n: u64) -> Option<u64> {
        match self {
            Self::Bucket(bucket, fill) => bucket.book(fill, n),
            Self::Window(..) => None,
        }
    }

    fn has_line(&self) -> bool {
        matches!(self, Self::Window(..)) && !seeded!("remote_windows_have_no_line")
    }

    fn limit(&self) -> u64 {
        match self {
            Self::Bucket(_, fill) => fill.burst(),
            Self::Window(window, _) => window.limit(),
        }
    }

    fn is_as_new(&self, now: u64) -> bool {
        match self {
            Self::Bucket(bucket, fill) => bucket.is_full(fill, now),
            Self::Window(window, _) => window.fresh_at().is_some_and(|at| at <= now),
        }
    }
}

/// The length of a segment, in microseconds.
pub(super) fn segment(length: Duration) -> u64 {
    micros(length).div_ceil(Rule::SEGMENTS).max(1)
}

impl Rates {
    pub(super) fn new(rule: &Rule, now: u64, token: u64) -> Self {
        Self {
            meter: Kind::new(rule, now),
            rule: *rule,
            edition: 0,
            asked_at: now,
            token,
            now,
            takers: BTreeMap::new(),
            line: Vec::new(),
            dues: BTreeSet::new(),
            is_raised: false,
        }
    }

    pub(super) fn fits(&self, rule: &Rule) -> bool {
        match (&self.meter, rule) {
            (Kind::Bucket(..), Rule::Rate { .. }) => true,
            (Kind::Window(_, length), Rule::Window { length: other, .. }) => length == other,
            _ => false,
        }
    }

    pub(super) fn token(&self) -> u64 {
        self.token
    }

    pub(super) fn is_empty(&self, now: u64) -> bool {
        let known = self.edition > 0 && now < self.asked_at.saturating_add(micros(Rule::REMEMBERED));
        self.takers.is_empty() && self.meter.is_as_new(now) && !known
    }

    /// In how many microseconds it is empty, if nobody asks before.
    #[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
    pub(super) fn fresh_in(&self, now: u64) -> u64 {
        let meter = match &self.meter {
            Kind::Bucket(bucket, fill) => now.saturating_add(bucket.level.div_ceil(fill.gain)),
            Kind::Window(window, _) => window.fresh_at().unwrap_or(u64::MAX),
        };
        let known = if self.edition > 0 { micros(Rule::REMEMBERED) } else { 0 };
        let takers = self.dues.last().map_or(now, |&(due, _)| due);
        meter
            .max(takers)
            .max(self.asked_at.saturating_add(known))
            .saturating_sub(now)
    }

    pub(super) fn sweep(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(&(due, session)) = self.dues.first()
            && due <= self.now
        {
            self.dues.pop_first();
            self.takers.remove(&session);
            self.leave(session);
        }
        self.meter.advance(self.now);
    }

    pub(super) fn step(&mut self, now: u64, rule: &Rule, step: &Step) -> Outcome {
        self.sweep(now);
        self.asked_at = self.now;
        let session = step.session;
        let mut reply = Reply {
            differs: step.edition == self.edition
                && self.rule != *rule
                && self.takers.keys().any(|&taker| taker != session),
            ..Reply::default()
        };
        if step.edition >= self.edition {
            self.adopt(step.edition, rule);
        }
        if step.end {
            if let Some(taker) = self.takers.remove(&session) {
                self.dues.remove(&(taker.expires, session));
            }
            self.leave(session);
        } else if step.begin || self.takers.contains_key(&session) {
            reply.alive = true;
            reply.again = self.apply(step).map(Duration::from_micros);
            let taker = self.takers.entry(session).or_default();
            reply
                .grants
                .extend(taker.grants.iter().filter(|grant| grant.token > step.seen));
            if !reply.grants.is_empty() && taker.due > self.now {
                reply.again = Some(Duration::from_micros(taker.due - self.now));
            }
        }
        if reply.alive && self.edition > step.edition {
            reply.rule = Some((self.edition, self.rule));
        }
        let (limit, free) = (self.meter.limit(), self.meter.free());
        reply.census = Census {
            limit,
            in_use: limit - free.min(limit),
            waiting: self.line.len() as u64,
            sessions: self.takers.len() as u64,
        };
        let raised = std::mem::take(&mut self.is_raised);
        let told = self.line.iter().map(|place| place.session);
        Outcome {
            reply,
            told: told.filter(|other| raised && *other != session).collect(),
        }
    }

    /// The rule of the edition that was asked for last counts.
    fn adopt(&mut self, edition: u64, rule: &Rule) {
        self.meter.adopt(rule);
        (self.rule, self.edition) = (*rule, edition);
    }

    pub(super) fn leave(&mut self, session: Session) {
        self.line.retain(|place| place.session != session);
    }

    /// What those need who come before this wish of `session`, and what all but `session` do.
    fn needed(&self, session: Session, wish: &Wish) -> (u64, u64) {
        let need = |place: &Place| place.need;
        let own = self.line.iter().position(|place| place.session == session);
        let before = own.filter(|_| wish.queue).unwrap_or(self.line.len());
        let others = self.line.iter().filter(|place| place.session != session);
        (self.line[..before].iter().map(need).sum(), others.map(need).sum())
    }

    /// Takes a place at the end, or keeps the one that there is.
    fn wait_in_line(&mut self, session: Session, wish: &Wish) {
        let Wish { id: wish, need, .. } = *wish;
        let new = Place { session, wish, need };
        match self.line.iter_mut().find(|place| place.session == session) {
            Some(place) => *place = new,
            None => self.line.push(new),
        }
    }

    /// Carries out what is new in `step`. Returns in how many microseconds the first wish fits that does not.
    fn apply(&mut self, step: &Step) -> Option<u64> {
        let taker = self.takers.entry(step.session).or_default();
        if step.seq <= taker.seq {
            return None;
        }
        self.dues.remove(&(taker.expires, step.session));
        taker.seq = step.seq;
        taker.expires = self.now.saturating_add(micros(step.ttl));
        self.dues.insert((taker.expires, step.session));
        let debt = step.charged.saturating_sub(taker.charged);
        taker.charged = taker.charged.max(step.charged);
        taker.grants.retain(|grant| grant.token > step.seen);
        self.meter.take(debt);
        // Who asks for a change goes by the latest edition, or somebody has changed it since: maybe the same step, under another
        // number.
        let is_latest = step.edition >= self.edition || seeded!("remote_changes_again");
        if let Some(rule) = step.change.filter(|rule| self.fits(rule) && is_latest) {
            let before = self.meter.limit();
            self.adopt(next_token(self.edition, self.now), &rule);
            let limit = self.meter.limit();
            // A waiter that needs more than that is refused when it asks again, and holds up no other until then.
            self.line.retain(|place| place.need <= limit);
            self.is_raised = limit > before && !seeded!("remote_raises_in_silence");
        }
        let session = step.session;
        if !step.wishes.iter().any(|wish| wish.queue) {
            let gone = |place: &Place| place.session == session && step.withdrawn.contains(&place.wish);
            self.line.retain(|place| !gone(place));
        }
        for wish in step.wishes.iter() {
            if self.takers.get(&session).is_some_and(|taker| wish.id <= taker.asked) {
                continue;
            }
            let (ahead, others) = self.needed(session, wish);
            let (free, want) = (self.meter.free(), wish.want.max(wish.need));
            let fits = wish.need.saturating_add(ahead) <= free;
            let units = if fits {
                want.min(free.saturating_sub(others)).max(wish.need)
            } else {
                want.min(self.meter.limit()).max(wish.need)
            };
            let wait = if fits {
                self.meter.take(units);
                Some(0)
            } else if wish.queue {
                self.meter.book(units)
            } else {
                None
            };
            let Some(wait) = wait else {
                let again = self.meter.wait_behind(wish.need, ahead);
                if wish.queue && again.is_some() && self.meter.has_line() {
                    self.wait_in_line(session, wish);
                }
                return again;
            };
            if wish.queue {
                self.leave(session);
            }
            let taker = self.takers.entry(session).or_default();
            taker.due = self.now.saturating_add(wait);
            taker.asked = wish.id;
            self.token = next_token(self.token, self.now);
            let token = self.token;
            taker.grants.push(Grant {
                wish: wish.id,
                units,
                token,
            });
        }
        None
    }
}
