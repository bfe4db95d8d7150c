//! What one session wants to lie at the store, and what is known to lie there, as a pure state machine. What is to be done is
//! the difference of the two, so that a step which failed half-way is made good by the next one, whatever had become of it.

use super::line::{Line, Outlook};
use crate::remote::backend::{Grant, Reply, Session, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What is to be changed at the store, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ops {
    /// The session is to be there.
    pub(crate) begin: bool,
    /// A node for each wish, of so many units, in this order.
    pub(crate) create: Vec<(u64, u64)>,
    /// Nodes by name, and of how few units they are to be.
    pub(crate) shrink: Vec<(Box<str>, u64)>,
    /// Nodes by name.
    pub(crate) delete: Vec<Box<str>>,
    /// The limit.
    pub(crate) limit: Option<u64>,
}

impl Ops {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Account {
    seq: u64,
    asked: u64,
    granted: u64,
    returned: u64,
    limit: Option<u64>,
    keeps: bool,
    /// The session is known to be there.
    begun: bool,
    wishes: BTreeMap<u64, Wished>,
    /// Nodes that are to go.
    doomed: BTreeSet<Box<str>>,
    /// Grants that the client has not seen.
    grants: Vec<Grant>,
    /// It is not known what became of the last changes: the next thing is to look.
    pub(super) in_doubt: bool,
}

#[derive(Debug)]
struct Wished {
    need: u64,
    queue: bool,
    /// How many units its node is to have.
    units: u64,
    /// The node that there is, and how many units that has.
    node: Option<(Box<str>, u64)>,
    /// It has been looked at once: it is in line, if it is not granted.
    judged: bool,
    granted: bool,
    /// It is more than there is, and has no node; but its client may not have heard that, and by then there may be more.
    refused: bool,
}

impl Account {
    pub(super) fn begun(&self) -> bool {
        self.begun
    }

    /// Takes note of what is new in `step`; `outlook` is what was last seen.
    pub(super) fn apply(&mut self, step: &Step, outlook: Outlook) {
        if step.seq <= self.seq {
            return;
        }
        self.seq = step.seq;
        self.keeps = step.keeps;
        self.limit = step.limit.or(self.limit);
        self.grants.retain(|grant| grant.token > step.seen);
        let returned = step.returned.clamp(self.returned, self.granted);
        self.take_back(returned - self.returned);
        self.returned = returned;
        // Who does not say a wish again has heard what became of it.
        let heard = |wish: &u64| step.wishes.iter().all(|said| said.id != *wish);
        self.wishes.retain(|wish, wished| !wished.refused || !heard(wish));
        for wish in &step.withdrawn {
            if self.wishes.get(wish).is_some_and(|wished| !wished.granted) {
                self.drop_wish(*wish);
            }
        }
        let mut free = outlook.free;
        for wish in step.wishes.iter().filter(|wish| wish.id > self.asked) {
            // What is wanted beyond the need is for whoever wants it: half an equal share at a time.
            let all = outlook.sessions + u64::from(!self.begun);
            let most = if all > 1 { outlook.limit / (2 * all) } else { free };
            let units = wish.want.min(most).min(free).max(wish.need);
            free = free.saturating_sub(units);
            let wished = Wished {
                need: wish.need,
                queue: wish.queue,
                units,
                node: None,
                judged: false,
                granted: false,
                refused: false,
            };
            self.wishes.insert(wish.id, wished);
        }
        self.asked = step.wishes.iter().map(|wish| wish.id).fold(self.asked, u64::max);
    }

    /// Units are given back. Which ones is the same to the store: whole nodes before parts of them.
    fn take_back(&mut self, mut units: u64) {
        let held = self.wishes.iter().filter(|(_, wished)| wished.granted);
        let exact = held.clone().find(|(_, wished)| wished.units == units);
        let order: Vec<u64> = exact.into_iter().chain(held).map(|(&wish, _)| wish).collect();
        for wish in order {
            let Some(wished) = self.wishes.get_mut(&wish).filter(|_| units > 0) else {
                continue;
            };
            let part = units.min(wished.units);
            units -= part;
            wished.units -= part;
            if wished.units == 0 {
                self.drop_wish(wish);
            }
        }
    }

    fn drop_wish(&mut self, wish: u64) {
        let node = self.wishes.remove(&wish).and_then(|wished| wished.node);
        self.doomed.extend(node.map(|(name, _)| name));
    }

    /// What is to be changed, as far as is known.
    pub(super) fn ops(&self) -> Ops {
        let mut ops = Ops {
            begin: !self.begun,
            delete: self.doomed.iter().cloned().collect(),
            limit: self.limit,
            ..Ops::default()
        };
        for (&wish, wished) in &self.wishes {
            match &wished.node {
                None if wished.refused => {}
                None => ops.create.push((wish, wished.units)),
                Some((name, units)) if *units > wished.units => ops.shrink.push((name.clone(), wished.units)),
                Some(_) => {}
            }
        }
        ops
    }

    /// Takes note of what lies at the store, once `done` has been done there. False when the session is not there any more.
    pub(super) fn see(&mut self, session: Session, line: &Line, done: &Ops) -> bool {
        self.in_doubt = false;
        let there = line.has(session);
        if self.begun && !there {
            return false;
        }
        self.begun = there;
        if self.limit == done.limit {
            self.limit = None;
        }
        let mut doomed = BTreeSet::new();
        for wished in self.wishes.values_mut() {
            wished.node = None;
        }
        for node in line.nodes_of(session) {
            match self.wishes.get_mut(&node.wish) {
                Some(wished) if wished.node.is_none() && !wished.refused => {
                    wished.node = Some((node.name.clone(), node.units));
                }
                // Nobody wants it, or it is there twice.
                _ => drop(doomed.insert(node.name.clone())),
            }
        }
        self.doomed = doomed;
        // A node that was granted and has gone was taken away by somebody else: what it stood for is lost.
        self.wishes
            .values()
            .all(|wished| !wished.granted || wished.node.is_some())
    }

    /// Decides, for each wish whose node is there, whether it is granted, goes on waiting, or goes.
    pub(super) fn judge(&mut self, session: Session, line: &Line) {
        let mut refused = Vec::new();
        for wished in self.wishes.values_mut().filter(|wished| wished.refused) {
            wished.refused = wished.need > line.limit();
        }
        for node in line.nodes_of(session) {
            let Some(wished) = self.wishes.get_mut(&node.wish).filter(|wished| !wished.granted) else {
                continue;
            };
            let fits = line.room_for(&node.name);
            let oversized = wished.need > line.limit() && !wished.judged;
            wished.judged = !oversized;
            if line.is_held(&node.name) || wished.need < wished.units && wished.need <= fits {
                if !line.is_held(&node.name) {
                    wished.units = wished.units.min(fits);
                }
                wished.units = wished.units.min(node.units);
                wished.granted = true;
                self.granted += wished.units;
                self.grants.push(Grant {
                    wish: node.wish,
                    units: wished.units,
                    token: node.token,
                });
            } else if !wished.queue {
                refused.push(node.wish);
            } else if oversized {
                wished.refused = !seeded!("queue_drops_the_refused");
                self.doomed.extend(wished.node.take().map(|(name, _)| name));
            } else {
                wished.units = wished.need;
            }
        }
        for wish in refused {
            self.drop_wish(wish);
        }
        self.grants.sort_by_key(|grant| grant.token);
    }

    /// The names of the nodes that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &str> {
        let waiting = self.wishes.values().filter(|wished| !wished.granted);
        waiting.filter_map(|wished| Some(&*wished.node.as_ref()?.0))
    }

    /// Whether it holds units that it may have no use for.
    pub(super) fn keeps(&self) -> bool {
        self.keeps && self.granted > self.returned
    }

    pub(super) fn answer(&self, step: &Step, line: &Line) -> Reply {
        let waits = self.waiting().next().is_some();
        let grants = self.grants.iter().filter(|grant| grant.token > step.seen);
        Reply {
            alive: true,
            grants: grants.copied().collect(),
            others_wait: line.others_wait(step.session),
            // Should the store's word be lost, which it is not.
            again: waits.then_some(step.ttl.max(Duration::from_millis(100))),
            census: line.census(),
            ..Reply::default()
        }
    }
}
