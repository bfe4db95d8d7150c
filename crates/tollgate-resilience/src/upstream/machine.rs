//! The state of an upstream, as its responses tell it: the pause, the ramp after it, and what is left of each quota. Pure: no lock, no
//! clock, no waiting. Instants and lengths of time are in ticks.
//!
//! ```text
//!          refused                       `until`                     the ramp ends
//!   Free ----------> Paused (until it) ----------> Ramp (from it) ----------------> Free
//!                      ^   '-- refused for longer: later            |
//!                      '------------------- refused ----------------'
//! ```
//!
//! Each refusal of a call that began after the latest pause begins a new one, with the next epoch. A refusal of an older call belongs to
//! the pause that there was already, and can only make it longer.
//!
//! # What is left of a quota
//! A response says that `remaining` units were left at some time after its call began. Units that were taken after that, or were in flight
//! then, may not have been counted yet: they are `uncounted`. So at least `remaining - uncounted` may still be taken, and at most
//! `remaining`. What was believed before is cut to that range. It falls at once when others use the quota, and it rises only as far as no
//! order of responses can refute.

use super::feedback::{Feedback, Refill, RemainingQuota};
use tollgate::{Ask, Cost, Demand, MAX_COSTS};

/// Calls, and the named costs.
pub(super) const METERS: usize = 1 + MAX_COSTS;
/// The quotas that are kept. One more takes the place of the one that was heard of longest ago.
const VIEWS: usize = 8;

/// No instant.
pub(super) const NEVER: u64 = u64::MAX;

/// Units by meter; calls come first.
pub(super) type Units = [u64; METERS];

/// What a call remembers of the moment at which it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) epoch: u64,
    done: Units,
    own: Units,
}

/// The memory of one admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) units: Units,
    pub(super) epoch: u64,
    pub(super) serial: u64,
    pub(super) at: u64,
}

/// The settings, in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) second: u64,
    /// The rate that a ramp leads to, as units and the ticks that they take; the measured one if none.
    pub(super) rate: Option<(u64, u64)>,
    /// The length of a ramp.
    pub(super) ramp: u64,
    /// The first pause where the upstream names none, and the longest.
    pub(super) pause: u64,
    pub(super) cap: u64,
}

/// Units of one cost, ever.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    cost: Option<Cost>,
    taken: u64,
    done: u64,
}

impl Meter {
    fn in_flight(&self) -> u64 {
        self.taken.saturating_sub(self.done)
    }
}

#[derive(Debug)]
pub(super) struct Machine {
    settings: Settings,
    /// The number of pauses.
    epoch: u64,
    /// Nothing starts before.
    until: u64,
    ramp: Option<Ramp>,
    /// Pauses by the back-off since the latest success.
    unnamed: u32,
    /// A refusal that named a wait of zero has been obeyed since the latest success.
    zero_obeyed: bool,
    pace: Pace,
    meters: [Meter; METERS],
    views: Vec<View>,
    /// Counts the times at which a quota was full again.
    serial: u64,
    pub(super) refused: u64,
}

impl Machine {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            epoch: 0,
            until: 0,
            ramp: None,
            unnamed: 0,
            zero_obeyed: false,
            pace: Pace::default(),
            meters: [Meter::default(); METERS],
            views: Vec::new(),
            serial: 0,
            refused: 0,
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// When the pause ends, if one is on.
    pub(super) fn paused_until(&self, now: u64) -> Option<u64> {
        (now < self.until).then_some(self.until)
    }

    /// True if nothing is known or in flight.
    pub(super) fn is_pristine(&self, now: u64) -> bool {
        let idle = self.meters.iter().all(|meter| meter.in_flight() == 0);
        idle && self.views.is_empty() && self.ramp.is_none() && now >= self.until
    }

    /// The meter of a cost; calls if none. A cost is counted from the first time at which it is named.
    fn meter(&mut self, cost: Option<Cost>) -> Option<usize> {
        let Some(cost) = cost else { return Some(0) };
        let known = self.known(cost);
        known.or_else(|| {
            let free = (1..METERS).find(|&meter| self.meters[meter].cost.is_none())?;
            self.meters[free].cost = Some(cost);
            Some(free)
        })
    }

    fn known(&self, cost: Cost) -> Option<usize> {
        (1..METERS).find(|&meter| self.meters[meter].cost == Some(cost))
    }

    pub(super) fn units(&mut self, ask: &Ask) -> Units {
        let mut units = [0; METERS];
        units[0] = ask.count();
        for (cost, count) in ask.costs() {
            if let Some(meter) = self.meter(Some(cost)) {
                units[meter] = count;
            }
        }
        units
    }

    /// The units of the waiters ahead.
    fn ahead(&self, demand: &Demand<'_>) -> Units {
        std::array::from_fn(|meter| match self.meters[meter].cost {
            Some(cost) => demand.per(cost).map_or(0, |demand| demand.ahead()),
            None if meter == 0 => demand.per_call().ahead(),
            None => 0,
        })
    }

    /// The instant from which `units` may be taken: at most `now` if they may be taken now, and [`NEVER`] if they are more than a quota
    /// holds by its own statement.
    pub(super) fn ready(&mut self, units: &Units, demand: &Demand<'_>, others: u64, now: u64) -> u64 {
        self.advance(now);
        let mut ahead = self.ahead(demand);
        ahead[0] = ahead[0].saturating_add(others);
        let after_ramp = self
            .ramp
            .filter(|_| units[0] > 0)
            .map_or(0, |ramp| ramp.due(units[0].saturating_add(ahead[0]), self.until));
        let is_a_call = units[0] > 0;
        let by_view = |view: &View| {
            // A request that does not name a cost needs at least one unit of it.
            let least = u64::from(is_a_call && view.meter > 0);
            if view.is_stated && units[view.meter] > view.full {
                return NEVER;
            }
            let need = units[view.meter].max(least).saturating_add(ahead[view.meter]);
            view.ready(need, now)
        };
        let after_views = self.views.iter().map(by_view).max().unwrap_or(0);
        self.until.max(after_ramp).max(after_views)
    }

    /// Takes units that [`ready`](Self::ready) has found ready.
    pub(super) fn take(&mut self, units: Units, now: u64) -> Taken {
        self.pace.count(units[0], now, self.settings.second);
        if let Some(ramp) = &mut self.ramp {
            ramp.started = ramp.started.saturating_add(units[0]);
        }
        for (meter, units) in self.meters.iter_mut().zip(units) {
            meter.taken = meter.taken.saturating_add(units);
        }
        for view in &mut self.views {
            view.left -= i128::from(units[view.meter]);
        }
        Taken {
            units,
            epoch: self.epoch,
            serial: self.serial,
            at: now,
        }
    }

    /// The work did not start: its units come back to a window that has not ended. To a bucket they come back less what it has filled
    /// since: it could have been full.
    pub(super) fn cancel(&mut self, taken: &Taken, now: u64) {
        self.advance(now);
        if let Some(ramp) = &mut self.ramp {
            if taken.epoch == self.epoch {
                ramp.started = ramp.started.saturating_sub(taken.units[0]);
            }
        }
        for meter in 0..METERS {
            self.give_back(meter, taken.units[meter], taken, now);
        }
    }

    fn give_back(&mut self, meter: usize, units: u64, taken: &Taken, now: u64) {
        self.meters[meter].taken = self.meters[meter].taken.saturating_sub(units);
        let same = |view: &&mut View| view.meter == meter && view.full_at <= taken.serial;
        for view in self.views.iter_mut().filter(same) {
            let filled = match view.filling {
                Filling::Window { .. } => 0,
                Filling::Bucket { count, ticks, .. } => {
                    (u128::from(now.saturating_sub(taken.at)) * u128::from(count)).div_ceil(ticks.into())
                }
            };
            view.left = view
                .left
                .saturating_add(u128::from(units).saturating_sub(filled) as i128);
        }
    }

    /// Corrects the units of `cost`. True if it is known.
    pub(super) fn settle(&mut self, taken: &mut Taken, cost: Cost, actual: u64, now: u64) -> bool {
        self.advance(now);
        let Some(meter) = self.known(cost) else { return false };
        let charged = std::mem::replace(&mut taken.units[meter], actual);
        if actual < charged {
            self.give_back(meter, charged - actual, &*taken, now);
        } else {
            let more = actual - charged;
            self.meters[meter].taken = self.meters[meter].taken.saturating_add(more);
            for view in self.views.iter_mut().filter(|view| view.meter == meter) {
                view.left -= i128::from(more);
            }
        }
        true
    }

    /// The work has ended: the upstream has counted it.
    pub(super) fn finish(&mut self, units: &Units) {
        for (meter, units) in self.meters.iter_mut().zip(units) {
            meter.done = meter.done.saturating_add(*units);
        }
    }

    /// A call begins. `None` if the upstream is paused.
    pub(super) fn begin(&mut self, ask: &Ask, now: u64) -> Option<Mark> {
        if self.paused_until(now).is_some() {
            return None;
        }
        let own = self.units(ask);
        Some(Mark {
            epoch: self.epoch,
            done: self.meters.map(|meter| meter.done),
            own,
        })
    }

    /// Nothing starts for `wait`, and then the ramp begins.
    pub(super) fn pause(&mut self, wait: u64, now: u64) {
        self.advance(now);
        let rate = match (self.settings.rate, self.ramp) {
            (Some(rate), _) => rate,
            // A rate measured on a ramp would be lower each time.
            (None, Some(ramp)) => ramp.rate,
            (None, None) => (self.pace.per_second(now, self.settings.second), self.settings.second),
        };
        self.epoch += 1;
        self.until = self.until.max(now.saturating_add(wait.min(self.settings.cap)));
        self.ramp = Some(Ramp {
            rate,
            length: self.settings.ramp,
            started: 0,
        });
    }

    /// Ends the pause, and the ramp.
    pub(super) fn resume(&mut self) {
        (self.until, self.ramp) = (0, None);
    }

    /// Hears the response to the call that began at `mark`.
    pub(super) fn observe(
        &mut self,
        mark: &Mark,
        feedback: &Feedback,
        ticks: impl Fn(std::time::Duration) -> u64,
        now: u64,
    ) {
        self.advance(now);
        let cap = self.settings.cap;
        let is_current = mark.epoch == self.epoch;
        if feedback.throttled {
            self.refused += 1;
            let named = feedback.retry_after.map(|wait| ticks(wait).min(cap));
            // A wait of zero names nothing to wait for: it is obeyed once, and then replaced by the back-off.
            let obeys_zero = named == Some(0) && self.unnamed == 0 && !self.zero_obeyed;
            let told = named.filter(|wait| *wait > 0 || obeys_zero);
            let wait = told.or_else(|| is_current.then(|| self.unnamed_pause()));
            let is_longer = |wait: u64| is_current || now.saturating_add(wait) > self.until.max(now);
            if let Some(wait) = wait.filter(|wait| is_longer(*wait)) {
                self.zero_obeyed |= obeys_zero;
                self.unnamed = self.unnamed.saturating_add(u32::from(told.is_none()));
                self.pause(wait, now);
            }
        } else if is_current {
            (self.unnamed, self.zero_obeyed) = (0, false);
        }
        for quota in feedback.quotas() {
            self.hear(mark, quota, &ticks, now);
        }
    }

    fn unnamed_pause(&self) -> u64 {
        let doubled = self.settings.pause.checked_shl(self.unnamed.min(32));
        doubled.unwrap_or(u64::MAX).min(self.settings.cap)
    }

    fn hear(&mut self, mark: &Mark, quota: RemainingQuota, ticks: &impl Fn(std::time::Duration) -> u64, now: u64) {
        let Some(meter) = self.meter(quota.cost) else { return };
        let counted = mark.done[meter].saturating_add(mark.own[meter]);
        let uncounted = self.meters[meter].taken.saturating_sub(counted);
        let least = quota.remaining.saturating_sub(uncounted);
        let stated = Stated {
            remaining: quota.remaining,
            least,
            limit: quota.limit,
            reset: quota.reset.map(|reset| ticks(reset).min(self.settings.cap)),
            window: quota.window.map(|window| ticks(window).min(self.settings.cap)),
            refill: quota.refill,
        };
        let same = |view: &View| view.meter == meter && view.number == quota.number;
        if let Some(view) = self.views.iter_mut().find(|view| same(view)) {
            view.hear(&stated, self.settings.second, now);
            return;
        }
        if self.views.len() == VIEWS {
            let oldest = (0..VIEWS).min_by_key(|&view| self.views[view].heard);
            oldest.map(|oldest| self.views.swap_remove(oldest));
        }
        let view = View::new(meter, quota.number, &stated, self.serial, self.settings.second, now);
        self.views.push(view);
    }

    /// Ends a ramp, and fills the quotas that are full again.
    fn advance(&mut self, now: u64) {
        if self
            .ramp
            .is_some_and(|ramp| now >= self.until.saturating_add(ramp.length))
        {
            self.ramp = None;
        }
        for view in &mut self.views {
            let in_flight = self.meters[view.meter].in_flight();
            if view.advance(in_flight, now) {
                self.serial += 1;
                view.full_at = self.serial;
            }
        }
    }

    /// Shows each quota.
    pub(super) fn visit(&mut self, now: u64, mut visit: impl FnMut(QuotaStatus)) {
        self.advance(now);
        for view in &self.views {
            let fills_in = match view.filling {
                Filling::Window { window, .. } => window,
                Filling::Bucket { count, ticks, .. } => {
                    let fills_in = u128::from(view.full) * u128::from(ticks) / u128::from(count);
                    u64::try_from(fills_in).unwrap_or(u64::MAX)
                }
            };
            visit(QuotaStatus {
                cost: self.meters[view.meter].cost,
                full: view.full,
                fills_in,
                left: u64::try_from(view.left_at(now)).unwrap_or(0),
                next: view.ready(1, now),
            });
        }
    }
}

/// A quota, as a page shows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuotaStatus {
    pub(super) cost: Option<Cost>,
    pub(super) full: u64,
    /// The time in which an empty one becomes full.
    pub(super) fills_in: u64,
    pub(super) left: u64,
    /// When there is one unit; at most now if there is.
    pub(super) next: u64,
}

/// The growth of the rate after a pause, from zero to `rate` at the end of `length`.
///
/// With the rate growing steadily, `rate x time^2 / (2 x length)` units have started after `time`.
#[derive(Clone, Copy, Debug)]
struct Ramp {
    rate: (u64, u64),
    length: u64,
    started: u64,
}

impl Ramp {
    /// When the last of `units` more may start, given that the ramp begins at `from`.
    fn due(&self, units: u64, from: u64) -> u64 {
        let before = u128::from(self.started) + u128::from(units) - 1;
        let (count, period) = (u128::from(self.rate.0.max(1)), u128::from(self.rate.1));
        // Twice the time that those before would take at the full rate.
        let twice = before.saturating_mul(2 * period).div_ceil(count);
        let length = u128::from(self.length);
        if twice >= length {
            return from.saturating_add(self.length);
        }
        let square = length * twice;
        let root = square.isqrt();
        let root = if root * root < square { root + 1 } else { root };
        from.saturating_add(u64::try_from(root).unwrap_or(u64::MAX).min(self.length))
    }
}

/// Calls of this second and the last, on a grid of seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    second: u64,
    this: u64,
    last: u64,
}

impl Pace {
    fn turn(&mut self, now: u64, second: u64) {
        let at = now / second.max(1);
        if at > self.second {
            self.last = if at == self.second + 1 { self.this } else { 0 };
            (self.second, self.this) = (at, 0);
        }
    }

    fn count(&mut self, calls: u64, now: u64, second: u64) {
        self.turn(now, second);
        self.this = self.this.saturating_add(calls);
    }

    fn per_second(&mut self, now: u64, second: u64) -> u64 {
        self.turn(now, second);
        self.this.max(self.last).max(1)
    }
}

/// What a response says of a quota, in ticks.
struct Stated {
    remaining: u64,
    /// What is left at least, whatever was in flight.
    least: u64,
    limit: Option<u64>,
    reset: Option<u64>,
    window: Option<u64>,
    refill: Refill,
}

/// What is left of one quota, as far as it is known.
#[derive(Debug)]
struct View {
    meter: usize,
    number: u64,
    /// The units left, at `since` in a bucket. Negative after a settlement.
    left: i128,
    /// The units of a full quota: as stated, or the most that was seen.
    full: u64,
    /// The upstream has stated a full quota.
    is_stated: bool,
    filling: Filling,
    /// The serial of the last time at which it was full again.
    full_at: u64,
    heard: u64,
}

/// How it fills.
#[derive(Clone, Copy, Debug)]
enum Filling {
    /// All at once, at `end` and after each `window` from there.
    Window { end: u64, window: u64 },
    /// `count` units in `ticks`, steadily since `since`.
    Bucket { since: u64, count: u64, ticks: u64 },
}

/// The units that fill in from `since` to `now`, at `count` in `ticks`.
fn filled(now: u64, since: u64, count: u64, ticks: u64) -> i128 {
    let units = u128::from(now.saturating_sub(since)) * u128::from(count) / u128::from(ticks);
    i128::try_from(units).unwrap_or(i128::MAX)
}

impl View {
    fn new(meter: usize, number: u64, stated: &Stated, serial: u64, second: u64, now: u64) -> Self {
        let mut view = Self {
            meter,
            number,
            left: i128::from(stated.least),
            full: stated.limit.unwrap_or(stated.remaining),
            is_stated: false,
            filling: Filling::Window {
                end: u64::MAX,
                window: 1,
            },
            full_at: serial,
            heard: now,
        };
        view.hear(stated, second, now);
        view
    }

    fn left_at(&self, now: u64) -> i128 {
        match self.filling {
            Filling::Window { .. } => self.left,
            Filling::Bucket { since, count, ticks } => {
                let left = self.left.saturating_add(filled(now, since, count, ticks));
                left.min(i128::from(self.full))
            }
        }
    }

    /// Brings it up to `now`. True if it has become full again.
    fn advance(&mut self, in_flight: u64, now: u64) -> bool {
        match &mut self.filling {
            Filling::Window { end, window } if now >= *end => {
                let windows = (now - *end) / *window + 1;
                *end = end.saturating_add(windows.saturating_mul(*window));
                // Calls in flight may count in the new window. One is let through, so that there is a response.
                self.left = i128::from(self.full.saturating_sub(in_flight).max(1));
                true
            }
            Filling::Window { .. } => false,
            Filling::Bucket { since, count, ticks } => {
                let full = i128::from(self.full);
                let is_full = self.left.saturating_add(filled(now, *since, *count, *ticks)) >= full;
                let fills = is_full && (self.left != full || *since < now);
                if is_full {
                    (self.left, *since) = (full, now.max(*since));
                }
                fills
            }
        }
    }

    /// When `need` units are left; those of a full quota if it needs more, or waits behind more. At most `now` if they are.
    fn ready(&self, need: u64, now: u64) -> u64 {
        let missing = i128::from(need.min(self.full)) - self.left_at(now);
        if missing <= 0 {
            return 0;
        }
        match self.filling {
            Filling::Window { end, .. } => end,
            Filling::Bucket { since, count, ticks } => {
                let missing = i128::from(need.min(self.full)) - self.left;
                let missing = u128::try_from(missing).unwrap_or(0);
                let takes = missing.saturating_mul(ticks.into()).div_ceil(count.into());
                since.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX))
            }
        }
    }

    /// Takes what a response says. The view is at `now`.
    fn hear(&mut self, stated: &Stated, second: u64, now: u64) {
        self.heard = now;
        let left = self.left_at(now);
        self.left = left.max(stated.least.into()).min(stated.remaining.into());
        self.full = stated.limit.unwrap_or(self.full).max(stated.remaining).max(1);
        self.is_stated |= stated.limit.is_some();
        let rate = match (stated.refill, stated.limit) {
            (Refill::PerSecond(rate), _) if rate.is_finite() && rate > 0.0 => {
                Some(((rate * 1e3) as u64, second.saturating_mul(1_000)))
            }
            (Refill::Continuous | Refill::PerSecond(_), Some(limit)) => {
                match (limit.checked_sub(stated.remaining), stated.reset) {
                    (Some(spent), Some(reset)) if spent > 0 && reset > 0 => Some((spent, reset)),
                    // Full: nothing shows the rate. Most quotas are by the minute.
                    _ => match self.filling {
                        Filling::Bucket { count, ticks, .. } => Some((count, ticks)),
                        Filling::Window { .. } => Some((limit, stated.window.unwrap_or(second.saturating_mul(60)))),
                    },
                }
            }
            _ => None,
        };
        if let Some((count, ticks)) = rate {
            self.filling = Filling::Bucket {
                since: now,
                count: count.max(1),
                ticks: ticks.max(1),
            };
            return;
        }
        // A window that ends now has ended a moment ago, or ends within the second that was rounded off.
        let reset = stated.reset.filter(|reset| *reset > 0);
        let ends = now.saturating_add(reset.unwrap_or(second));
        let (end, window) = match self.filling {
            // Each response names the end rounded up to a second: the earliest is the closest.
            Filling::Window { end, window } if end.abs_diff(ends) <= second => (end.min(ends), window),
            Filling::Window { window, .. } => (ends, window),
            Filling::Bucket { .. } => (ends, 1),
        };
        let window = stated.window.unwrap_or(window.max(ends - now)).max(1);
        self.filling = Filling::Window { end, window };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tollgate::ClockReading;

    /// One tick is one millisecond.
    fn machine(rate: u64, ramp: u64) -> Machine {
        Machine::new(Settings {
            second: 1_000,
            rate: (rate > 0).then_some((rate, 1_000)),
            ramp,
            pause: 1_000,
            cap: 60_000,
        })
    }

    fn millis(time: Duration) -> u64 {
        time.as_millis() as u64
    }

    impl Machine {
        fn ready_for(&mut self, ask: &Ask, now: u64) -> u64 {
            let reading = ClockReading::default();
            let units = self.units(ask);
            self.ready(&units, &Demand::new(ask, &reading), 0, now)
        }

        fn goes(&mut self, calls: u64, now: u64) -> Option<Taken> {
            let ask = Ask::many(calls);
            (self.ready_for(&ask, now) <= now).then(|| {
                let units = self.units(&ask);
                self.take(units, now)
            })
        }

        fn called(&mut self, now: u64) -> (Taken, Mark) {
            let taken = self.goes(1, now).expect("it is ready");
            (taken, self.begin(&Ask::one(), now).expect("no pause is on"))
        }

        fn hears(&mut self, mark: &Mark, feedback: Feedback, now: u64) {
            self.observe(mark, &feedback, millis, now);
        }
    }

    fn refused_for(millis: u64) -> Feedback {
        Feedback::throttled(Some(Duration::from_millis(millis)))
    }

    fn left(remaining: u64, reset: u64) -> Feedback {
        let quota = RemainingQuota::of_calls(remaining).reset(Duration::from_millis(reset));
        Feedback::default().quota(quota)
    }

    #[test]
    fn refusals_of_older_calls_belong_to_the_pause_and_can_make_it_longer_only() {
        let mut machine = machine(100, 0);
        let calls: Vec<_> = (0..4).map(|_| machine.called(0).1).collect();
        machine.hears(&calls[0], refused_for(500), 10);
        assert_eq!(machine.paused_until(10), Some(510));
        machine.hears(&calls[1], refused_for(100), 20);
        machine.hears(&calls[2], Feedback::throttled(None), 30);
        assert_eq!((machine.paused_until(30), machine.epoch()), (Some(510), 1));
        machine.hears(&calls[3], refused_for(900), 40);
        assert_eq!((machine.paused_until(40), machine.refused), (Some(940), 4));
        assert!(machine.begin(&Ask::one(), 939).is_none() && machine.begin(&Ask::one(), 940).is_some());
    }

    #[test]
    fn a_late_refusal_that_names_no_time_begins_no_pause() {
        let mut machine = machine(100, 0);
        let (early, late) = (machine.called(0).1, machine.called(0).1);
        machine.hears(&early, refused_for(500), 10);
        machine.hears(&late, Feedback::throttled(None), 600);
        assert_eq!((machine.paused_until(600), machine.epoch()), (None, 1));
    }

    #[test]
    fn pauses_without_a_named_time_double_until_a_success() {
        let mut machine = machine(100, 0);
        let mut now = 0;
        for pause in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000] {
            let call = machine.called(now).1;
            machine.hears(&call, Feedback::throttled(None), now);
            assert_eq!(machine.paused_until(now), Some(now + pause));
            now += pause;
        }
        let call = machine.called(now).1;
        machine.hears(&call, Feedback::default(), now);
        let call = machine.called(now).1;
        machine.hears(&call, Feedback::throttled(None), now);
        assert_eq!(machine.paused_until(now), Some(now + 1_000));
    }

    /// The pause that each of these refusals begins, one after the other.
    fn pauses(machine: &mut Machine, now: &mut u64, refusals: &[Feedback]) -> Vec<u64> {
        let pause = |refusal: &Feedback| {
            let call = machine.called(*now).1;
            machine.hears(&call, *refusal, *now);
            let until = machine.paused_until(*now).unwrap_or(*now);
            until - std::mem::replace(now, until)
        };
        refusals.iter().map(pause).collect()
    }

    #[test]
    fn a_wait_of_zero_is_obeyed_once_and_backs_off_until_a_success() {
        let (mut machine, mut now) = (machine(100, 0), 0);
        let zero = refused_for(0);
        assert_eq!(pauses(&mut machine, &mut now, &[zero; 4]), [0, 1_000, 2_000, 4_000]);
        let call = machine.called(now).1;
        machine.hears(&call, Feedback::default(), now);
        assert_eq!(pauses(&mut machine, &mut now, &[zero; 3]), [0, 1_000, 2_000]);
    }

    #[test]
    fn a_named_wait_between_zeros_is_no_success() {
        let (mut machine, mut now) = (machine(100, 0), 0);
        let (zero, named, unnamed) = (refused_for(0), refused_for(10), Feedback::throttled(None));
        let refusals = [zero, named, zero, named, unnamed, zero];
        assert_eq!(
            pauses(&mut machine, &mut now, &refusals),
            [0, 10, 1_000, 10, 2_000, 4_000]
        );
    }

    #[test]
    fn a_late_refusal_with_a_wait_of_zero_begins_no_pause() {
        let mut machine = machine(100, 0);
        let (early, late) = (machine.called(0).1, machine.called(0).1);
        machine.hears(&early, refused_for(0), 10);
        machine.hears(&late, refused_for(0), 10);
        assert_eq!((machine.paused_until(10), machine.epoch()), (None, 1));
    }

    #[test]
    fn a_ramp_admits_half_of_the_rate_and_each_call_exactly_when_it_is_due() {
        let mut machine = machine(100, 2_000);
        machine.pause(500, 0);
        let mut at = Vec::new();
        let mut now = 0;
        while now < 2_499 {
            let due = machine.ready_for(&Ask::one(), now);
            if due > now {
                assert!(machine.goes(1, due - 1).is_none());
                now = due;
            }
            machine.goes(1, now).unwrap();
            at.push(now);
        }
        assert_eq!(at[0], 500);
        let within = |from, to| at.iter().filter(|at| (from..to).contains(*at)).count();
        assert_eq!((within(500, 1_500), within(1_500, 2_500)), (25, 75));
        // Then the ramp is over.
        assert!((0..1_000).all(|_| machine.goes(1, 2_500).is_some()));
    }

    #[test]
    fn a_ramp_without_a_rate_leads_to_the_pace_before_the_pause() {
        let mut machine = machine(0, 2_000);
        for call in 0..50 {
            machine.goes(1, call * 20).unwrap();
        }
        machine.pause(100, 1_000);
        let started = (1_100..2_100).filter(|&now| machine.goes(1, now).is_some()).count();
        assert!((12..=13).contains(&started), "{started}");
        // A pause in the ramp does not lead to less.
        machine.pause(0, 2_100);
        let started = (2_100..3_100).filter(|&now| machine.goes(1, now).is_some()).count();
        assert!((12..=13).contains(&started), "{started}");
    }

    #[test]
    fn a_cancelled_call_gives_its_place_in_the_ramp_back() {
        let mut machine = machine(10, 2_000);
        machine.pause(0, 0);
        let first = machine.goes(1, 0).unwrap();
        let due = machine.ready_for(&Ask::one(), 0);
        assert!(due > 0);
        machine.cancel(&first, 0);
        assert!(machine.goes(1, 0).is_some());
        assert_eq!(machine.ready_for(&Ask::one(), 0), due);
    }

    #[test]
    fn a_quota_falls_at_once_and_rises_by_as_much_as_no_order_can_refute() {
        let mut machine = machine(100, 0);
        let calls: Vec<_> = (0..4).map(|_| machine.called(0)).collect();
        // Three others are in flight, and may not have been counted.
        machine.hears(&calls[0].1, left(10, 5_000), 10);
        assert_eq!(machine.views[0].left, 7);
        machine.finish(&calls[0].0.units);
        // Other users of the quota have taken the rest.
        machine.hears(&calls[1].1, left(2, 4_990), 20);
        assert_eq!(machine.views[0].left, 2);
        machine.finish(&calls[1].0.units);
        // An old response that was late proves nothing.
        machine.hears(&calls[2].1, left(9, 4_980), 30);
        assert_eq!(machine.views[0].left, 6, "three others may have come after it");
        for (taken, _) in &calls[2..] {
            machine.finish(&taken.units);
        }
        let last = machine.called(40);
        machine.hears(&last.1, left(9, 4_960), 50);
        assert_eq!(machine.views[0].left, 9, "it was alone");
    }

    #[test]
    fn a_window_that_ends_is_full_again_less_what_is_in_flight() {
        let mut machine = machine(100, 0);
        let calls: Vec<_> = (0..3).map(|_| machine.called(0)).collect();
        let quota = RemainingQuota::of_calls(0).limit(10).reset(Duration::from_secs(1));
        let stated = quota.window(Duration::from_secs(5));
        machine.hears(&calls[0].1, Feedback::default().quota(stated), 0);
        machine.finish(&calls[0].0.units);
        assert_eq!(machine.ready_for(&Ask::one(), 0), 1_000);
        assert!(machine.goes(1, 999).is_none());
        let started = (0..20).filter(|_| machine.goes(1, 1_000).is_some()).count();
        assert_eq!(started, 8);
        assert_eq!(machine.ready_for(&Ask::one(), 1_000), 6_000);
        // All of it is in flight. One call finds out.
        let started = (0..20).filter(|_| machine.goes(1, 6_000).is_some()).count();
        assert_eq!(started, 1);
    }

    #[test]
    fn a_bucket_fills_steadily_at_the_rate_that_its_reset_shows() {
        let mut machine = machine(100, 0);
        let (taken, mark) = machine.called(0);
        // 60 of 100 are back in 6 s.
        let quota = RemainingQuota::of_calls(40).limit(100).reset(Duration::from_secs(6));
        machine.hears(&mark, Feedback::default().quota(quota.refill(Refill::Continuous)), 0);
        machine.finish(&taken.units);
        machine.goes(40, 0).unwrap();
        assert_eq!(machine.ready_for(&Ask::one(), 0), 100);
        assert!(machine.goes(1, 99).is_none() && machine.goes(1, 100).is_some());
        assert_eq!(machine.ready_for(&Ask::many(3), 100), 400);
        assert_eq!(machine.ready_for(&Ask::many(100), 100), 10_100);
        assert_eq!(machine.ready_for(&Ask::many(101), 100), NEVER);
    }

    #[test]
    fn a_bucket_that_was_full_takes_no_older_units_back() {
        let mut machine = machine(100, 0);
        let (_, mark) = machine.called(0);
        let quota = RemainingQuota::of_calls(5).limit(5).refill(Refill::PerSecond(5.0));
        machine.hears(&mark, Feedback::default().quota(quota), 0);
        let old = machine.goes(5, 0).unwrap();
        let new = machine.goes(5, 1_000).unwrap();
        machine.cancel(&old, 1_000);
        assert!(machine.goes(1, 1_000).is_none());
        machine.cancel(&new, 1_000);
        assert!(machine.goes(5, 1_000).is_some() && machine.goes(1, 1_000).is_none());
    }

    #[test]
    fn a_call_that_names_no_tokens_needs_one() {
        const TOKENS: Cost = Cost::new("tokens");
        let mut machine = machine(100, 0);
        let (_, mark) = machine.called(0);
        let quota = |left| {
            RemainingQuota::of(TOKENS, left)
                .limit(100)
                .reset(Duration::from_secs(9))
        };
        machine.hears(&mark, Feedback::default().quota(quota(20)), 0);
        assert_eq!(machine.ready_for(&Ask::one().cost(TOKENS, 21), 0), 9_000);
        assert!(machine.ready_for(&Ask::one().cost(TOKENS, 20), 0) == 0 && machine.goes(1, 0).is_some());
        machine.hears(&mark, Feedback::default().quota(quota(0)), 0);
        assert!(machine.goes(1, 0).is_none() && machine.goes(0, 0).is_some());
    }

    #[test]
    fn the_quota_that_was_heard_of_longest_ago_makes_room() {
        let mut machine = machine(100, 0);
        let (_, mark) = machine.called(0);
        for number in 0..20 {
            let quota = RemainingQuota::of_calls(1).number(number).reset(Duration::from_secs(9));
            machine.hears(&mark, Feedback::default().quota(quota), number);
        }
        let mut known: Vec<_> = machine.views.iter().map(|view| view.number).collect();
        known.sort_unstable();
        assert_eq!(known, [12, 13, 14, 15, 16, 17, 18, 19]);
    }
}
