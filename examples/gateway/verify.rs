//! The second pass: replays the audit log in whole numbers, and knows nothing of the limiters.
//!
//! Each bucket is a ledger of charges and give-backs; the window and the calls in flight are counted. Whatever the log
//! says was admitted must have been allowed by every ledger at that instant.

use super::audit::{Limits, Row};
use std::collections::VecDeque;

/// A bucket as a ledger: its level in tokens times the period, so that refilling is whole numbers too.
struct Ledger {
    count: i128,
    period: i128,
    capacity: i128,
    level: i128,
    at: i128,
}

impl Ledger {
    fn new([count, period, burst]: [i64; 3]) -> Self {
        let capacity = i128::from(burst) * i128::from(period);
        Self {
            count: count.into(),
            period: period.into(),
            capacity,
            level: capacity,
            at: 0,
        }
    }

    fn refill(&mut self, at: i64) {
        let passed = i128::from(at) - self.at;
        self.level = (self.level + passed * self.count).min(self.capacity);
        self.at = at.into();
    }

    /// Charges, and says whether that much was there.
    fn charge(&mut self, tokens: i64, at: i64) -> bool {
        self.refill(at);
        self.level -= i128::from(tokens) * self.period;
        self.level >= 0
    }

    /// Corrects a charge: what was too much flows back up to the burst, what was too little is taken, also into debt.
    fn correct(&mut self, charged: i64, actual: i64, at: i64) {
        self.refill(at);
        self.level = (self.level + i128::from(charged - actual) * self.period).min(self.capacity);
    }
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

/// How long a request of so many tokens is worked on, in nanoseconds.
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
        rule(
            row.ended_wait - row.arrived <= limits.max_wait,
            "it waited longer than anybody may",
        );
        rule(
            row.estimate == row.context + 64,
            "its estimate is not its context and 64",
        );
        match (row.admitted_order, row.finished_order, row.finished) {
            (Some(admitted), Some(order), Some(finished)) => {
                rule(row.leg.is_none() && row.reason.is_none(), "it was admitted and refused");
                rule(order > admitted, "it finished before it was admitted");
                rule(
                    finished - row.ended_wait == service_nanos(row),
                    "it held its permit for another time than it worked",
                );
            }
            (None, None, None) => {
                let named = row.leg.as_deref().is_some_and(|leg| !leg.is_empty()) && row.reason.is_some();
                rule(named, "no leg refused it, and nobody admitted it");
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
        rows.windows(2).all(|pair| pair[0].arrived <= pair[1].arrived),
        "the requests did not arrive in order".into(),
    );
}

fn replay(limits: &Limits, rows: &[&Row], found: &mut Vec<String>) {
    enum Event {
        Admit,
        Finish,
    }
    let mut events: Vec<(i64, i64, Event, &Row)> = Vec::new();
    for row in rows {
        if let Some(order) = row.admitted_order {
            events.push((order, row.ended_wait, Event::Admit, row));
        }
        if let (Some(order), Some(at)) = (row.finished_order, row.finished) {
            events.push((order, at, Event::Finish, row));
        }
    }
    events.sort_by_key(|event| event.0);
    let mut requests = Ledger::new(limits.requests);
    let mut tokens = Ledger::new(limits.tokens);
    let mut window: VecDeque<i64> = VecDeque::new();
    let mut in_flight = 0;
    let mut last = (0, 0);
    for (order, at, event, row) in events {
        let mut rule = |holds: bool, rule: &str| {
            if !holds {
                found.push(format!("{} {}: {rule}", row.tenant, row.id));
            }
        };
        rule(order > last.0 && at >= last.1, "its events are out of order");
        last = (order, at.max(last.1));
        match event {
            Event::Admit => {
                rule(requests.charge(1, at), "more requests than the rate allows");
                rule(tokens.charge(row.estimate, at), "more tokens than the rate allows");
                while window.front().is_some_and(|&first| first <= at - limits.window[1]) {
                    window.pop_front();
                }
                window.push_back(at);
                rule(
                    window.len() as i64 <= limits.window[0],
                    "more in one window than are allowed",
                );
                in_flight += 1;
                rule(in_flight <= limits.in_flight, "more in flight than are allowed");
            }
            Event::Finish => {
                tokens.correct(row.estimate, row.context + row.generated, at);
                in_flight -= 1;
            }
        }
    }
}
