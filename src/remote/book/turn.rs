//! A step at a [`Note`]: the book is opened for it as the [`Witness`] knows it, does what the reference does, and is written down
//! again.

mod down;

use super::Fill;
use super::bucket::Bucket;
use super::dated::Time;
use super::note::{Metered, Note};
use super::rates::{Kind, Rates, Taker};
use super::witness::{Lot, Seen, Witness};
use crate::remote::backend::{Reply, Rule, Session, Step};
use down::Paper;

/// Sessions may fill so many bytes of a note: 1,300 of them, each with a grant that it has not seen. Where nobody lives for
/// long, and the store keeps no clock, nobody sees that others are dead.
const SESSIONS: usize = 1_300 * SESSION;
/// One takes so many, with its place in line in another part of the note, and so many more for each grant.
const SESSION: usize = 184;
const GRANT: usize = 32;

/// What a step comes to.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) reply: Reply,
    pub(crate) after: After,
}

/// What becomes of the note.
#[derive(Debug)]
pub(crate) enum After {
    /// It stays, or there is none.
    Same,
    /// Nothing is lost with it.
    Gone,
    /// It is to be this one, which is as good as none in so many microseconds, if nobody asks before.
    New(Box<Note>, u64),
}

/// Why there is no step to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Odd {
    /// The note contradicts itself.
    Note,
    /// It is of another kind of limiter, or of a window of another length.
    Kind,
}

/// Carries out `step` at `now`, of a client that was set up with `rule`, at what the witness has seen last; at none when there is
/// none. `fresh` is a number that was never used; `time` is what the store's own clock says, if it has one.
pub(crate) fn turn(
    seen: Option<(&Note, &Witness)>,
    now: u64,
    fresh: u64,
    rule: &Rule,
    step: &Step,
    time: Option<&Time>,
) -> Result<Turn, Odd> {
    let (mut book, kept) = match seen {
        Some((note, witness)) => {
            let kept = note.rule().ok_or(Odd::Note)?;
            (Rates::open(note, witness, &kept, now), kept)
        }
        None => (Rates::new(rule, now, 0), *rule),
    };
    if !book.fits(rule) {
        return Err(Odd::Kind);
    }
    book.sweep(now);
    let knew = book.takers.contains_key(&step.session);
    // Of two rules that differ without a change, that of whoever came last counts: those who are there are not asked again.
    let sets = step.edition > book.edition || step.begin && !knew && !step.end;
    let before = book.poured();
    let paper = Paper {
        seen,
        before,
        now,
        fresh,
        time,
    };
    let mut reply = book.step(now, if sets { rule } else { &kept }, step).reply;
    reply.differs |= !sets && step.edition == book.edition && kept != *rule;
    book.crowd_out(step.session);
    let after = if book.is_empty(now) && (seen.is_some() || !reply.alive) {
        seen.map_or(After::Same, |_| After::Gone)
    } else if reply.alive || knew {
        let note = book.note(&paper, step);
        After::New(Box::new(note), book.fresh_in(now))
    } else {
        After::Same
    };
    Ok(Turn { reply, after })
}

/// In how many microseconds a note that was just seen is as good as none, if nobody asks before.
pub(crate) fn fresh_in(note: &Note, witness: &Witness, now: u64) -> Result<u64, Odd> {
    let kept = note.rule().ok_or(Odd::Note)?;
    let mut book = Rates::open(note, witness, &kept, now);
    book.sweep(now);
    Ok(book.fresh_in(now))
}

impl Rates {
    /// As the witness knows it.
    fn open(note: &Note, witness: &Witness, rule: &Rule, now: u64) -> Self {
        let mut book = Self::new(rule, now, note.token);
        book.edition = note.edition;
        book.asked_at = witness.asked.1;
        book.meter = match (&note.meter, &witness.seen) {
            (Metered::Bucket { price, gain, brim, .. }, Seen::Level { level, at }) => {
                let (price, gain, brim) = (*price, *gain, *brim);
                Kind::Bucket(Bucket::filled(*level, *at), Fill { price, gain, brim })
            }
            (_, Seen::Lots(lots)) => Kind::of_lots(rule, lots, now),
            _ => book.meter,
        };
        for (session, heard) in &witness.heard {
            let Some(noted) = note.takers.get(&session.to_string()) else {
                continue;
            };
            let expires = heard.at.saturating_add(noted.ttl);
            book.dues.insert((expires, *session));
            let taker = Taker {
                expires,
                seq: noted.seq,
                charged: noted.charged,
                asked: noted.asked,
                grants: noted.grants().collect(),
                due: heard.due,
            };
            book.takers.insert(*session, taker);
        }
        book.line = note.line().collect();
        book
    }

    /// Forgets others when there are too many, those first who would be soonest. They begin anew, and what they took still counts:
    /// whatever they were given without hearing of it they take once more.
    fn crowd_out(&mut self, session: Session) {
        let size = |taker: &Taker| SESSION - GRANT + GRANT * taker.grants.len();
        let mut filled: usize = self.takers.values().map(size).sum();
        while filled > SESSIONS
            && let Some(&(due, other)) = self.dues.iter().find(|(_, other)| *other != session)
        {
            self.dues.remove(&(due, other));
            filled -= self.takers.remove(&other).as_ref().map_or(0, size);
            self.leave(other);
        }
    }
}

impl Kind {
    /// A window in which these were taken.
    fn of_lots(rule: &Rule, lots: &[Lot], now: u64) -> Self {
        let mut meter = Self::new(rule, lots.first().map_or(now, |lot| lot.at));
        for lot in lots {
            meter.advance(lot.at);
            meter.take(lot.count);
        }
        meter.advance(now);
        meter
    }
}

#[cfg(test)]
mod tests;
