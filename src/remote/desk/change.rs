//! Another rule, for everybody.
//!
//! That of a rate or window is changed in two steps. The first asks which edition of the rule the store goes by; the second changes
//! it if it is that one still. So a change whose answer was lost is carried out once, however often it is said: if it was, or
//! somebody else has changed it at the same time, the store goes by a later edition, and theirs counts as the last one.

use super::Desk;
use crate::remote::backend::{Reply, Rule, Session, Step};
use crate::time::Instant;

/// What is to be changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    rule: Rule,
    number: u64,
    /// The step that asks for the edition.
    asks: Option<(Session, u64)>,
    /// It was answered.
    is_known: bool,
}

impl Desk {
    /// Asks for another rule, of the same kind. Returns the number of the change.
    pub(in crate::remote) fn change(&mut self, rule: Rule) -> u64 {
        self.changes.0 += 1;
        self.change = Some(Change {
            rule,
            number: self.changes.0,
            asks: None,
            is_known: !self.plan.spends() || seeded!("remote_changes_blindly"),
        });
        self.poke();
        self.changes.0
    }

    /// True once the store has carried out the change with this number, or a later one.
    pub(in crate::remote) fn has_changed(&self, change: u64) -> bool {
        self.changes.1 >= change
    }

    /// The rule that this step of the session is to ask for, if any.
    pub(super) fn rule_to_say(&mut self, session: Session, seq: u64) -> Option<Rule> {
        let change = self.change.as_mut()?;
        change.asks = Some((session, seq));
        change.is_known.then_some(change.rule)
    }

    /// The change that was asked for has been carried out; or there is a rule that somebody has changed.
    pub(super) fn note_change(&mut self, step: &Step, reply: &Reply, now: Instant) {
        if let Some(change) = &mut self.change
            && reply.alive
        {
            let Change { rule, number, .. } = *change;
            if step.change == Some(rule) || matches!(rule, Rule::Permits { limit } if step.limit == Some(limit)) {
                self.change = None;
                self.changes.1 = number;
                self.tell_watchers();
            } else if change.asks == Some((step.session, step.seq)) {
                change.is_known = true;
            }
        }
        if let Some((edition, rule)) = reply.rule
            && edition > self.edition
        {
            self.edition = edition;
            self.plan.rule = rule;
            self.share.adopt(&rule);
            self.forget_short(now);
            // There may be room earlier now.
            (self.ask_at, self.fetch_at) = (None, None);
        }
    }
}
