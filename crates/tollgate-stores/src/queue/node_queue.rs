//! The nodes under a key, as they were last seen.

use std::collections::BTreeSet;
use tollgate::remote::{Session, Usage};

/// A request as a node at the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its name at the store.
    pub(crate) name: Box<str>,
    /// Its place in the order of creation, which the store assigns.
    pub(crate) place: u64,
    pub(crate) session: Session,
    pub(crate) request: u64,
    /// Its units. They only ever get fewer.
    pub(crate) units: u64,
    /// The token of its grant, where this process may need it.
    pub(crate) token: u64,
}

/// A summary of the usage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outlook {
    pub(crate) limit: u64,
    /// Units neither held nor waited for.
    pub(crate) free: u64,
    pub(crate) sessions: u64,
}

/// Everything under a key: the limit, the sessions, and the nodes in order of their places.
///
/// A node is *held* from the instant on at which it and all before it are within the limit. Nodes before it only go and shrink,
/// so that it stays held. Only a lowered limit would say otherwise, and that takes nothing away. Hence held nodes are
/// remembered here.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeQueue {
    limit: u64,
    sessions: BTreeSet<Session>,
    nodes: Vec<Node>,
    held: BTreeSet<Box<str>>,
}

impl NodeQueue {
    pub(crate) fn new(limit: u64, sessions: impl IntoIterator<Item = Session>, mut nodes: Vec<Node>) -> Self {
        nodes.sort_by_key(|node| node.place);
        let mut queue = Self {
            limit,
            sessions: sessions.into_iter().collect(),
            nodes,
            held: BTreeSet::new(),
        };
        queue.settle();
        queue
    }

    /// Takes over the held nodes of an earlier look.
    pub(crate) fn after(&mut self, earlier: &Self) {
        let known = self.nodes.iter().filter(|node| earlier.held.contains(&node.name));
        let known: Vec<_> = known.map(|node| node.name.clone()).collect();
        self.held.extend(known);
        self.settle();
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The summary of this look.
    pub(crate) fn outlook(&self) -> Outlook {
        Outlook {
            limit: self.limit,
            free: self.limit.saturating_sub(sum(self.nodes.iter())),
            sessions: self.sessions.len() as u64,
        }
    }

    pub(crate) fn has(&self, session: Session) -> bool {
        self.sessions.contains(&session)
    }

    pub(crate) fn nodes_of(&self, session: Session) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.session == session)
    }

    /// The units of this node; zero without it.
    pub(crate) fn units(&self, name: &str) -> u64 {
        let node = self.nodes.iter().find(|node| &*node.name == name);
        node.map_or(0, |node| node.units)
    }

    /// Sets the tokens of the nodes of `session`. False when one is unknown.
    pub(crate) fn mark(&mut self, session: Session, token: impl Fn(&str) -> Option<u64>) -> bool {
        let mut nodes = self.nodes.iter_mut().filter(|node| node.session == session);
        nodes.all(|node| match token(&node.name) {
            Some(token) => {
                node.token = token;
                true
            }
            None => false,
        })
    }

    pub(crate) fn is_held(&self, name: &str) -> bool {
        self.held.contains(name)
    }

    /// The units that this node may have, after those before it.
    pub(crate) fn free_for(&self, name: &str) -> u64 {
        let before = self.nodes.iter().take_while(|node| &*node.name != name);
        self.limit.saturating_sub(sum(before))
    }

    /// Whether a session other than `session` waits.
    pub(crate) fn others_wait(&self, session: Session) -> bool {
        let mut waiting = self.nodes.iter().filter(|node| !self.is_held(&node.name));
        waiting.any(|node| node.session != session)
    }

    pub(crate) fn usage(&self) -> Usage {
        let held = self.nodes.iter().filter(|node| self.is_held(&node.name));
        Usage {
            limit: self.limit,
            in_use: sum(held),
            waiting: (self.nodes.len() - self.held.len()) as u64,
            sessions: self.sessions.len() as u64,
        }
    }

    /// A session comes.
    pub(crate) fn add_session(&mut self, session: Session) {
        self.sessions.insert(session);
    }

    /// A session goes. Its nodes go by themselves.
    pub(crate) fn remove_session(&mut self, session: Session) {
        self.sessions.remove(&session);
    }

    /// A node comes, or is reported again.
    pub(crate) fn add(&mut self, node: Node) {
        if self.nodes.iter().any(|known| known.name == node.name) {
            return;
        }
        let at = self.nodes.partition_point(|known| known.place < node.place);
        self.nodes.insert(at, node);
        self.settle();
    }

    /// A node goes.
    pub(crate) fn remove(&mut self, name: &str) {
        self.nodes.retain(|node| &*node.name != name);
        self.held.remove(name);
        self.settle();
    }

    /// The node at this place shrinks.
    pub(crate) fn shrink(&mut self, place: u64, units: u64) {
        if let Some(node) = self.nodes.iter_mut().find(|node| node.place == place) {
            node.units = node.units.min(units);
        }
        self.settle();
    }

    /// The limit changes.
    #[cfg(any(test, feature = "etcd"))]
    pub(crate) fn resize(&mut self, limit: u64) {
        self.limit = limit;
        self.settle();
    }

    fn settle(&mut self) {
        let mut sum = 0_u64;
        for node in &self.nodes {
            sum = sum.saturating_add(node.units);
            if sum > self.limit {
                break;
            }
            if !self.held.contains(&node.name) {
                self.held.insert(node.name.clone());
            }
        }
    }
}

/// The sum of their units.
fn sum<'a>(nodes: impl Iterator<Item = &'a Node>) -> u64 {
    nodes.map(|node| node.units).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(client: u64) -> Session {
        Session { client, number: 1 }
    }

    fn node(place: u64, units: u64) -> Node {
        Node {
            name: format!("n{place}").into(),
            place,
            session: session(place),
            request: 1,
            units,
            token: place,
        }
    }

    fn held(queue: &NodeQueue) -> Vec<u64> {
        let held = queue.nodes.iter().filter(|node| queue.is_held(&node.name));
        held.map(|node| node.place).collect()
    }

    #[test]
    fn nodes_within_the_limit_are_held_in_order_and_none_is_passed() {
        let queue = NodeQueue::new(4, [], vec![node(3, 1), node(1, 2), node(2, 3)]);
        assert_eq!(held(&queue), [1], "the third would fit, and the second comes first");
        assert_eq!(
            (queue.usage().in_use, queue.usage().waiting, queue.outlook().free),
            (2, 2, 0)
        );
        assert_eq!((queue.free_for("n2"), queue.free_for("n3")), (2, 0));
    }

    /// It waited, and so did those behind it.
    #[test]
    fn a_waiter_that_leaves_admits_none() {
        let mut queue = NodeQueue::new(4, [], vec![node(1, 4), node(2, 1), node(3, 1)]);
        queue.remove("n2");
        assert_eq!(held(&queue), [1]);
        queue.remove("n1");
        assert_eq!(held(&queue), [3]);
    }

    #[test]
    fn as_many_as_the_limit_are_held() {
        let queue = NodeQueue::new(3, [], (1..=4).map(|place| node(place, 1)).collect());
        assert_eq!(held(&queue), [1, 2, 3]);
    }

    #[test]
    fn impossible_numbers_do_not_panic() {
        let queue = NodeQueue::new(4, [], vec![node(1, u64::MAX), node(2, u64::MAX), node(3, 1)]);
        assert_eq!(
            (queue.outlook().free, queue.free_for("n3"), held(&queue)),
            (0, 0, vec![])
        );
        let queue = NodeQueue::new(u64::MAX, [], vec![node(1, u64::MAX), node(2, u64::MAX)]);
        assert_eq!(queue.usage().in_use, u64::MAX);
    }

    #[test]
    fn a_node_that_goes_or_shrinks_admits_the_next() {
        let mut queue = NodeQueue::new(4, [], vec![node(1, 2), node(2, 3), node(3, 1)]);
        queue.shrink(1, 1);
        assert_eq!(held(&queue), [1, 2]);
        queue.remove("n1");
        assert_eq!(held(&queue), [2, 3]);
        queue.add(node(4, 1));
        queue.add(node(4, 1));
        assert_eq!((held(&queue), queue.usage().waiting), (vec![2, 3], 1));
        assert!(queue.others_wait(session(2)) && !queue.others_wait(session(4)));
    }

    #[test]
    fn a_lowered_limit_takes_nothing_away_and_grants_nothing_until_it_has_drained() {
        let mut queue = NodeQueue::new(4, [], vec![node(1, 2), node(2, 2), node(3, 1)]);
        queue.resize(2);
        assert_eq!((held(&queue), queue.usage().in_use), (vec![1, 2], 4));
        queue.remove("n1");
        assert_eq!(held(&queue), [2]);
        // Also for an observer that begins now, and did not see it granted; known grants stay known.
        let mut anew = NodeQueue::new(1, [], vec![node(2, 2), node(3, 1)]);
        assert_eq!(held(&anew), [0; 0]);
        anew.after(&queue);
        assert_eq!(held(&anew), [2]);
    }
}
