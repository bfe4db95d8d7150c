//! The second pass: replays the audit log in whole numbers, and knows nothing of the limiters.
//!
//! Each bucket is a ledger of charges and give-backs; the window and the calls in flight are counted. Whatever the log
//! says was admitted must have been allowed by every ledger at that instant. The log of a live run is held to the same
//! rules, with one doubt: an act lies somewhere between two instants that were read around it.

use super::audit::{Limits, Row};
use std::collections::VecDeque;

/// A bucket as a ledger: its level in tokens times the period, so that refilling is whole numbers too.
///
/// Of a live run it is known only between which two instants something was charged or came back. What is under way may have
/// happened already: the level counts what comes back from the first instant on and what is charged from the last on, and
/// may stand above the burst by what is under way. So it is never below the level of the bucket itself, and of a log
/// without such doubt it is that level.
struct Ledger {
    count: i128,
    period: i128,
    burst: i128,
    under_way: i128,
    level: i128,
    at: i128,
}

impl Ledger {
    fn new([count, period, burst]: [i64; 3]) -> Self {
        let burst = i128::from(burst) * i128::from(period);
        Self {
            count: count.into(),
            period: period.into(),
            burst,
            under_way: 0,
            level: burst,
            at: 0,
        }
    }

    fn refill(&mut self, at: i64) {
        let passed = i128::from(at) - self.at;
        self.level = (self.level + passed * self.count).min(self.burst + self.under_way);
        self.at = at.into();
    }

    /// From here on it may have been charged.
    fn begin_charge(&mut self, tokens: i64, at: i64) {
        self.refill(at);
        self.under_way += i128::from(tokens) * self.period;
    }

    /// By now it has been charged. Says whether that much was there, but for `grain` nanoseconds of refilling.
    fn charge(&mut self, tokens: i64, at: i64, grain: i64) -> bool {
        self.refill(at);
        self.under_way -= i128::from(tokens) * self.period;
        self.level = (self.level - i128::from(tokens) * self.period).min(self.burst + self.under_way);
        self.level >= -i128::from(grain) * self.count
    }

    /// From here on a charge may have been corrected: the excess comes back, also that taken into debt.
    fn begin_correction(&mut self, charged: i64, actual: i64, at: i64) {
        self.refill(at);
        let back = i128::from(charged - actual) * self.period;
        self.under_way += back.abs();
        self.level += back.max(0);
    }

    /// By now it has been corrected: the shortfall has been taken.
    fn correct(&mut self, charged: i64, actual: i64, at: i64) {
        self.refill(at);
        let back = i128::from(charged - actual) * self.period;
        self.under_way -= back.abs();
        self.level = (self.level + back.min(0)).min(self.burst + self.under_way);
    }
}

/// A sliding window: the instants from which on the latest admissions may have counted.
struct Window {
    limit: usize,
    length: i64,
    since: VecDeque<i64>,
}

impl Window {
    fn new([limit, length]: [i64; 2]) -> Self {
        Self {
            limit: usize::try_from(limit).unwrap_or(0),
            length,
            since: VecDeque::new(),
        }
    }

    /// Something was admitted between `from` and `at`. False when more than the limit lie within one window for certain.
    fn admit(&mut self, from: i64, at: i64, grain: i64) -> bool {
        self.since.retain(|&since| since > at - self.length + grain);
        self.since.push_back(from);
        self.since.len() <= self.limit
    }
}

/// How far two readings of one instant may differ in a live run: ticks are converted to nanoseconds, and each limiter
/// converts its rate once.
const GRAIN: i64 = 1_000;

/// For how long a thread of a live run may be stopped between looking at the clock and acting on it.
const LATE: i64 = 5_000_000_000;

fn grain(limits: &Limits) -> i64 {
    if limits.live { GRAIN } else { 0 }
}

/// Everything that is wrong with the log; nothing when it holds.
pub fn violations(limits: &[Limits], rows: &[Row]) -> Vec<String> {
    let mut found = Vec::new();
    for row in rows {
        if !limits.iter().any(|limits| limits.tenant == row.tenant) {
            found.push(format!("{} {}: a tenant without limits", row.tenant, row.id));
        }
    }
    for limits in limits {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.tenant == limits.tenant).collect();
        each_row(limits, &rows, &mut found);
        all_rows(limits, &rows, &mut found);
        replay(limits, &rows, &mut found);
    }
    found
}

/// The work time of a request, by its tokens, in nanoseconds.
fn service_nanos(row: &Row) -> i64 {
    150_000_000 + 50_000 * row.context + 30_000_000 * row.generated
}

fn each_row(limits: &Limits, rows: &[&Row], found: &mut Vec<String>) {
    for row in rows {
        let mut rule = |holds: bool, rule: &str| {
            if !holds {
                found.push(format!("{} {}: {rule}", row.tenant, row.id));
            }
        };
        rule(row.ended_wait >= row.arrived, "its wait ended before it arrived");
        // Its patience began when it joined the queue, at `joined` at the latest.
        let answered = row.counted.unwrap_or(row.ended_wait);
        let late = if limits.live { LATE } else { 0 };
        rule(
            answered - row.joined <= limits.max_wait + late,
            "it waited longer than a request may",
        );
        rule(
            row.estimate == row.context + 64,
            "its estimate is not its context and 64",
        );
        let acts = (row.admitted_order, row.finished_order);
        let instants = (row.counted, row.noted, row.finished, row.settled);
        match (acts, instants) {
            ((Some(admitted), Some(order)), (Some(counted), Some(noted), Some(finished), Some(settled))) => {
                rule(row.leg.is_none() && row.reason.is_none(), "it was admitted and refused");
                rule(order > admitted, "it finished before it was admitted");
                let order = [row.arrived, noted, row.ended_wait, finished, settled];
                rule(counted <= noted && order.is_sorted(), "its instants are out of order");
                let held = finished - row.ended_wait;
                let worked = service_nanos(row);
                let as_long = if limits.live {
                    // A timer is never early.
                    (held + 1) * limits.speed >= worked
                } else {
                    held == worked
                };
                rule(as_long, "it held its permit for another time than it worked");
                let without_doubt = noted == row.ended_wait && settled == finished && row.joined == row.arrived;
                rule(
                    limits.live || without_doubt,
                    "virtual time passed between an act and its note",
                );
                // Live, a thread may be stopped in between for any time.
                rule(
                    limits.live || noted - counted <= limits.lateness,
                    "it was counted as of too long ago",
                );
            }
            ((None, None), (None, None, None, None)) => {
                let named = row.leg.as_deref().is_some_and(|leg| !leg.is_empty()) && row.reason.is_some();
                rule(named, "no leg refused it, and none admitted it");
            }
            _ => rule(false, "it was admitted and did not finish"),
        }
    }
}

fn all_rows(limits: &Limits, rows: &[&Row], found: &mut Vec<String>) {
    let mut rule = |holds: bool, rule: String| {
        if !holds {
            found.push(format!("{}: {rule}", limits.tenant));
        }
    };
    let arrived = limits.arrived;
    rule(
        rows.len() as i64 == arrived,
        format!("{} requests are logged, and {arrived} arrived", rows.len()),
    );
    rule(
        rows.iter().zip(0..).all(|(row, id)| row.id == id),
        "the requests are not numbered without a gap".into(),
    );
    let tokens: i64 = rows.iter().map(|row| row.context + row.generated).sum();
    let expected = limits.trace_tokens;
    rule(
        tokens == expected,
        format!("{tokens} tokens are logged, and the trace holds {expected}"),
    );
    rule(
        limits.live || limits.speed == 1,
        "virtual time goes by the trace, and not faster".into(),
    );
    rule(
        rows.windows(2).all(|pair| pair[0].arrived <= pair[1].arrived),
        "the requests did not arrive in order".into(),
    );
}

/// Every event of the run in the order of its instants, and of its numbers at one instant.
fn replay(limits: &Limits, rows: &[&Row], found: &mut Vec<String>) {
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Event {
        Charge,
        Admit,
        Finish,
        Settle,
    }
    let mut events: Vec<(i64, i64, Event, &Row)> = Vec::new();
    for row in rows {
        if let (Some(order), Some(counted), Some(noted)) = (row.admitted_order, row.counted, row.noted) {
            events.push((counted, order, Event::Charge, row));
            events.push((noted, order, Event::Admit, row));
        }
        if let (Some(order), Some(finished), Some(settled)) = (row.finished_order, row.finished, row.settled) {
            events.push((finished, order, Event::Finish, row));
            events.push((settled, order, Event::Settle, row));
        }
    }
    events.sort_by_key(|&(at, order, event, _)| (at, order, event));
    let mut requests = Ledger::new(limits.requests);
    let mut tokens = Ledger::new(limits.tokens);
    let mut window = Window::new(limits.window);
    let mut in_flight = 0;
    let mut last = 0;
    let grain = grain(limits);
    for (at, order, event, row) in events {
        let mut rule = |holds: bool, rule: &str| {
            if !holds {
                found.push(format!("{} {}: {rule}", row.tenant, row.id));
            }
        };
        // Live, the number is given a moment before or after the instant is read.
        if event != Event::Charge {
            rule(limits.live || order >= last, "its events are out of order");
            last = order;
        }
        let actual = row.context + row.generated;
        match event {
            Event::Charge => {
                requests.begin_charge(1, at);
                tokens.begin_charge(row.estimate, at);
                let holds = limits.live || window.admit(at, at, grain);
                rule(holds, "more in one window than are allowed");
            }
            Event::Admit => {
                rule(requests.charge(1, at, grain), "more requests than the rate allows");
                rule(
                    tokens.charge(row.estimate, at, grain),
                    "more tokens than the rate allows",
                );
                let holds = !limits.live || window.admit(row.counted.unwrap_or(at), at, grain);
                rule(holds, "more in one window than are allowed");
                in_flight += 1;
                rule(in_flight <= limits.in_flight, "more in flight than are allowed");
            }
            Event::Finish => {
                tokens.begin_correction(row.estimate, actual, at);
                in_flight -= 1;
            }
            Event::Settle => tokens.correct(row.estimate, actual, at),
        }
    }
}
