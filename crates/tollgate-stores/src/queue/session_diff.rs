//! The nodes that one session needs at the store, and the nodes known to be there, as a pure state machine. The difference is
//! what has to be done. So a sync that failed half-way is repaired by the next one, whatever its outcome.

use super::node_queue::{NodeQueue, Outlook};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tollgate::remote::{Grant, Session, SyncReply, SyncRequest};

/// Changes at the store, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ops {
    /// The session begins.
    pub(crate) begin: bool,
    /// New nodes: the request, and its units, in this order.
    pub(crate) create: Vec<(u64, u64)>,
    /// Nodes that shrink, by name, with their new units.
    pub(crate) shrink: Vec<(Box<str>, u64)>,
    /// Nodes that go, by name.
    pub(crate) delete: Vec<Box<str>>,
    /// The new limit.
    pub(crate) limit: Option<u64>,
}

impl Ops {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SessionDiff {
    seq: u64,
    asked: u64,
    granted: u64,
    returned: u64,
    limit: Option<u64>,
    keeps: bool,
    /// The session is known to be there.
    begun: bool,
    requests: BTreeMap<u64, PendingRequest>,
    /// Nodes that have to go.
    doomed: BTreeSet<Box<str>>,
    /// Grants that the client has not seen.
    grants: Vec<Grant>,
    /// The outcome of the last changes is unknown: a look comes next.
    pub(super) in_doubt: bool,
}

#[derive(Clone, Debug)]
struct PendingRequest {
    need: u64,
    queue: bool,
    /// The units that its node should have.
    units: u64,
    /// The present node, and its units.
    node: Option<(Box<str>, u64)>,
    /// It was decided on once: it waits in the queue, unless it is granted.
    judged: bool,
    granted: bool,
    /// It exceeds the limit, and has no node; but its client may not know that yet, and the limit may be raised by then.
    refused: bool,
}

impl SessionDiff {
    pub(super) fn begun(&self) -> bool {
        self.begun
    }

    /// Applies the new parts of `sync`; `outlook` is the last view.
    pub(super) fn apply(&mut self, sync: &SyncRequest, outlook: Outlook) {
        if sync.seq <= self.seq {
            return;
        }
        self.seq = sync.seq;
        self.keeps = sync.keeps;
        self.limit = sync.limit.or(self.limit);
        self.grants.retain(|grant| grant.token > sync.seen);
        let returned = sync.returned.clamp(self.returned, self.granted);
        self.return_units(returned - self.returned);
        self.returned = returned;
        // A client that does not repeat a request knows its outcome.
        let heard = |request: &u64| sync.requests.iter().all(|said| said.id != *request);
        self.requests
            .retain(|request, pending| !pending.refused || !heard(request));
        for request in &sync.withdrawn {
            if self.requests.get(request).is_some_and(|pending| !pending.granted) {
                self.drop_request(*request);
            }
        }
        let mut free = outlook.free;
        for request in sync.requests.iter().filter(|request| request.id > self.asked) {
            // Units wanted beyond the need: half an equal share at a time, for fairness.
            let all = outlook.sessions + u64::from(!self.begun);
            let most = if all > 1 { outlook.limit / (2 * all) } else { free };
            let units = request.want.min(most).min(free).max(request.need);
            free = free.saturating_sub(units);
            let pending = PendingRequest {
                need: request.need,
                queue: request.queue,
                units,
                node: None,
                judged: false,
                granted: false,
                refused: false,
            };
            self.requests.insert(request.id, pending);
        }
        self.asked = sync
            .requests
            .iter()
            .map(|request| request.id)
            .fold(self.asked, u64::max);
    }

    /// Returns units. The choice does not matter to the store: whole nodes before parts of them.
    fn return_units(&mut self, mut units: u64) {
        let held = self.requests.iter().filter(|(_, pending)| pending.granted);
        let exact = held.clone().find(|(_, pending)| pending.units == units);
        let order: Vec<u64> = exact.into_iter().chain(held).map(|(&request, _)| request).collect();
        for request in order {
            let Some(pending) = self.requests.get_mut(&request).filter(|_| units > 0) else {
                continue;
            };
            let part = units.min(pending.units);
            units -= part;
            pending.units -= part;
            if pending.units == 0 {
                self.drop_request(request);
            }
        }
    }

    fn drop_request(&mut self, request: u64) {
        let node = self.requests.remove(&request).and_then(|pending| pending.node);
        self.doomed.extend(node.map(|(name, _)| name));
    }

    /// The changes to be made, as far as they are known.
    pub(super) fn ops(&self) -> Ops {
        let mut ops = Ops {
            begin: !self.begun,
            delete: self.doomed.iter().cloned().collect(),
            limit: self.limit,
            ..Ops::default()
        };
        for (&request, pending) in &self.requests {
            match &pending.node {
                None if pending.refused => {}
                None => ops.create.push((request, pending.units)),
                Some((name, units)) if *units > pending.units => ops.shrink.push((name.clone(), pending.units)),
                Some(_) => {}
            }
        }
        ops
    }

    /// Records the nodes at the store, once `done` was carried out. False when the session is gone.
    pub(super) fn see(&mut self, session: Session, queue: &NodeQueue, done: &Ops) -> bool {
        self.in_doubt = false;
        let there = queue.has(session);
        if self.begun && !there {
            return false;
        }
        self.begun = there;
        if self.limit == done.limit {
            self.limit = None;
        }
        let mut doomed = BTreeSet::new();
        for pending in self.requests.values_mut() {
            pending.node = None;
        }
        for node in queue.nodes_of(session) {
            match self.requests.get_mut(&node.request) {
                Some(pending) if pending.node.is_none() && !pending.refused => {
                    pending.node = Some((node.name.clone(), node.units));
                }
                // A node without a request, or a second one.
                _ => drop(doomed.insert(node.name.clone())),
            }
        }
        self.doomed = doomed;
        // A granted node that is gone was deleted by another: its units are lost.
        self.requests
            .values()
            .all(|pending| !pending.granted || pending.node.is_some())
    }

    /// Decides for each request with a node whether it is granted, goes on waiting, or goes.
    pub(super) fn decide(&mut self, session: Session, queue: &NodeQueue) {
        let mut refused = Vec::new();
        for pending in self.requests.values_mut().filter(|pending| pending.refused) {
            pending.refused = pending.need > queue.limit();
        }
        for node in queue.nodes_of(session) {
            let Some(pending) = self.requests.get_mut(&node.request).filter(|pending| !pending.granted) else {
                continue;
            };
            let fits = queue.free_for(&node.name);
            let oversized = pending.need > queue.limit() && !pending.judged;
            pending.judged = !oversized;
            if queue.is_held(&node.name) || pending.need < pending.units && pending.need <= fits {
                if !queue.is_held(&node.name) {
                    pending.units = pending.units.min(fits);
                }
                pending.units = pending.units.min(node.units);
                pending.granted = true;
                self.granted += pending.units;
                self.grants.push(Grant {
                    request: node.request,
                    units: pending.units,
                    token: node.token,
                });
            } else if !pending.queue {
                refused.push(node.request);
            } else if oversized {
                pending.refused = true;
                self.doomed.extend(pending.node.take().map(|(name, _)| name));
            } else {
                pending.units = pending.need;
            }
        }
        for request in refused {
            self.drop_request(request);
        }
        self.grants.sort_by_key(|grant| grant.token);
    }

    /// The names of the nodes that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &str> {
        let waiting = self.requests.values().filter(|pending| !pending.granted);
        waiting.filter_map(|pending| Some(&*pending.node.as_ref()?.0))
    }

    /// Whether it holds units that it may not need.
    pub(super) fn keeps(&self) -> bool {
        self.keeps && self.granted > self.returned
    }

    pub(super) fn answer(&self, sync: &SyncRequest, queue: &NodeQueue) -> SyncReply {
        let waits = self.waiting().next().is_some();
        let grants = self.grants.iter().filter(|grant| grant.token > sync.seen);
        SyncReply {
            alive: true,
            grants: grants.copied().collect(),
            others_wait: queue.others_wait(sync.session),
            // In case the store's notification is lost.
            again: waits.then_some(sync.ttl.max(Duration::from_millis(100))),
            usage: queue.usage(),
            ..SyncReply::default()
        }
    }
}
