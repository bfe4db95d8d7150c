//! The queue of a pool as plain data: entries in a slab, linked by index. Push, take and remove run in constant time.
//!
//! An entry is in the list of its priority. While a task awaits it, it is in the list of awaited entries as well.

use super::group_limit::Membership;
use super::scheduler::Entry;
use super::seat::Seat;
use super::state::TaskQueue;
use crate::pool::task_options::{AGEING, Priority};
use std::cmp::Reverse;
use std::marker::PhantomData;
use std::sync::Arc;

const NONE: u32 = u32::MAX;

/// The number of slab places that an empty queue may keep. It frees a larger slab.
const KEPT: usize = 256;

/// The key of an entry. After the entry has left, the key finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) struct Key {
    index: u32,
    /// The number of the entry, unique within the queue.
    number: u64,
}

impl Key {
    /// Builds a key from its parts, for another queue type.
    pub(in crate::pool) fn of(index: usize, number: u64) -> Self {
        let index = index as u32;
        Self { index, number }
    }

    pub(in crate::pool) fn parts(self) -> (usize, u64) {
        (self.index as usize, self.number)
    }
}

#[derive(Clone, Copy, Debug)]
struct Links {
    prev: u32,
    next: u32,
}

const UNLINKED: Links = Links { prev: NONE, next: NONE };

struct Node<E> {
    entry: Option<E>,
    number: u64,
    priority: Priority,
    /// The links in the list of the entry's priority. A free place links to the next free place.
    links: Links,
    /// The number of tasks that await the entry. `awaited_links` links the entry while there is one.
    awaited: u32,
    awaited_links: Links,
    /// True if the entry is in the list of tasks set aside, not in that of its priority.
    aside: bool,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

/// Selects the links of a node that a list uses.
type Via<E> = fn(&mut Node<E>) -> &mut Links;

impl List {
    fn push_back<E>(&mut self, nodes: &mut [Node<E>], via: Via<E>, index: u32) {
        *via(&mut nodes[index as usize]) = Links {
            prev: self.tail,
            next: NONE,
        };
        match self.tail {
            NONE => self.head = index,
            tail => via(&mut nodes[tail as usize]).next = index,
        }
        self.tail = index;
    }

    /// Inserts the node after `prev`; at the front if `prev` is `NONE`.
    fn insert_behind<E>(&mut self, nodes: &mut [Node<E>], via: Via<E>, prev: u32, index: u32) {
        let next = match prev {
            NONE => std::mem::replace(&mut self.head, index),
            prev => std::mem::replace(&mut via(&mut nodes[prev as usize]).next, index),
        };
        *via(&mut nodes[index as usize]) = Links { prev, next };
        match next {
            NONE => self.tail = index,
            next => via(&mut nodes[next as usize]).prev = index,
        }
    }

    fn unlink<E>(&mut self, nodes: &mut [Node<E>], via: Via<E>, index: u32) {
        let Links { prev, next } = std::mem::replace(via(&mut nodes[index as usize]), UNLINKED);
        match prev {
            NONE => self.head = next,
            prev => via(&mut nodes[prev as usize]).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => via(&mut nodes[next as usize]).prev = prev,
        }
    }
}

/// Returns true if the task was set aside and now has its place in its group.
pub(in crate::pool) fn is_back(entry: &impl Entry) -> bool {
    entry.member().is_some_and(|member| member.is_reserved())
}

/// A queue of tasks. `W` is the state of a worker.
pub(in crate::pool) struct Queue<E, W = ()> {
    nodes: Vec<Node<E>>,
    free: u32,
    /// The lists by priority, the lowest first.
    lists: [List; 3],
    aside: [List; 3],
    awaited: List,
    awaited_len: usize,
    aside_len: usize,
    /// The number of entries in groups with a limit.
    set: usize,
    len: usize,
    next_number: u64,
    /// The number of entries preferred to the oldest one since the oldest was last taken.
    preferred: u32,
    own: PhantomData<fn() -> W>,
}

impl<E: Entry + Send, W: Default + Send + Sync> Queue<E, W> {
    pub(in crate::pool) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
            lists: [List::default(); 3],
            aside: [List::default(); 3],
            awaited: List::default(),
            awaited_len: 0,
            aside_len: 0,
            set: 0,
            len: 0,
            next_number: 0,
            preferred: 0,
            own: PhantomData,
        }
    }

    pub(in crate::pool) fn push(&mut self, entry: E, priority: Priority) -> Key {
        let number = self.next_number;
        self.next_number += 1;
        self.len += 1;
        self.set += usize::from(entry.member().is_some());
        let node = Node {
            entry: Some(entry),
            number,
            priority,
            links: UNLINKED,
            awaited: 0,
            awaited_links: UNLINKED,
            aside: false,
        };
        let index = match self.free {
            NONE => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
            index => {
                self.free = self.nodes[index as usize].links.next;
                self.nodes[index as usize] = node;
                index
            }
        };
        self.lists[priority as usize].push_back(&mut self.nodes, |node| &mut node.links, index);
        Key { index, number }
    }

    fn node(&self, key: Key) -> Option<&Node<E>> {
        let node = self.nodes.get(key.index as usize)?;
        (node.number == key.number && node.entry.is_some()).then_some(node)
    }

    fn key(&self, index: u32) -> Key {
        let number = self.nodes[index as usize].number;
        Key { index, number }
    }

    fn oldest(&self) -> Option<Key> {
        let heads = self.lists.iter().map(|list| list.head).filter(|&head| head != NONE);
        heads.map(|head| self.key(head)).min_by_key(|key| key.number)
    }

    /// Returns the oldest entry of the lowest priority: the first to be evicted.
    pub(in crate::pool) fn last(&self) -> Option<Key> {
        let mut heads = self
            .lists
            .iter()
            .zip(&self.aside)
            .map(|(list, aside)| [list.head, aside.head]);
        let lowest = heads
            .find(|heads| *heads != [NONE; 2])?
            .into_iter()
            .filter(|&head| head != NONE);
        lowest.map(|head| self.key(head)).min_by_key(|key| key.number)
    }

    /// Counts one more task that awaits the entry. Returns false if the entry has left the queue.
    pub(in crate::pool) fn await_it(&mut self, key: Key) -> bool {
        if self.node(key).is_none() {
            return false;
        }
        let node = &mut self.nodes[key.index as usize];
        node.awaited += 1;
        if node.awaited == 1 {
            self.awaited_len += 1;
            self.awaited
                .push_back(&mut self.nodes, |node| &mut node.awaited_links, key.index);
        }
        true
    }

    /// Counts one task fewer that awaits the entry.
    pub(in crate::pool) fn await_no_more(&mut self, key: Key) {
        if self.node(key).is_none() {
            return;
        }
        let node = &mut self.nodes[key.index as usize];
        node.awaited -= 1;
        if node.awaited == 0 {
            self.forget_awaited(key.index);
        }
    }

    fn forget_awaited(&mut self, index: u32) {
        self.awaited_len -= 1;
        self.awaited
            .unlink(&mut self.nodes, |node| &mut node.awaited_links, index);
    }

    /// Removes all entries: the highest priority first, each priority in order of arrival.
    pub(in crate::pool) fn drain(&mut self) -> Vec<E> {
        let empty = Self {
            next_number: self.next_number,
            ..Self::new()
        };
        let mut nodes = std::mem::replace(self, empty).nodes;
        nodes.sort_unstable_by_key(|node| (Reverse(node.priority), node.number));
        nodes.into_iter().filter_map(|node| node.entry).collect()
    }
}

impl<E: Entry + Send, W: Default + Send + Sync> TaskQueue for Queue<E, W> {
    type Entry = E;
    type Key = Key;
    type Own = W;
    const THREADS: bool = false;

    fn seat(&mut self) -> Seat<W> {
        Seat::default()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn awaited_len(&self) -> usize {
        self.awaited_len
    }

    /// Returns the next entry by priority, age and arrival.
    fn first(&self) -> Option<Key> {
        if self.preferred >= AGEING {
            return self.oldest();
        }
        let highest = self.lists.iter().rfind(|list| list.head != NONE)?;
        Some(self.key(highest.head))
    }

    fn aside_len(&self) -> usize {
        self.aside_len
    }

    fn may_have_members(&self) -> bool {
        self.set > 0
    }

    fn first_awaited(&self) -> Option<Key> {
        let mut index = self.awaited.head;
        while index != NONE {
            let node = &self.nodes[index as usize];
            let member = node.entry.as_ref().and_then(Entry::member);
            if member.is_none_or(|member| member.may_start()) {
                return Some(self.key(index));
            }
            index = node.awaited_links.next;
        }
        None
    }

    fn get(&self, key: Key) -> Option<&E> {
        self.node(key)?.entry.as_ref()
    }

    /// Takes an entry out to start it, and counts it for the ageing of priorities.
    fn take(&mut self, key: Key) -> Option<E> {
        self.node(key)?;
        self.preferred = if self.oldest() == Some(key) {
            0
        } else {
            self.preferred + 1
        };
        self.remove(key)
    }

    /// Takes an entry out.
    fn remove(&mut self, key: Key) -> Option<E> {
        let (priority, aside) = self.node(key).map(|node| (node.priority as usize, node.aside))?;
        if aside {
            self.aside[priority].unlink(&mut self.nodes, |node| &mut node.links, key.index);
            self.aside_len -= 1;
        } else {
            self.lists[priority].unlink(&mut self.nodes, |node| &mut node.links, key.index);
            self.len -= 1;
        }
        if self.nodes[key.index as usize].awaited > 0 {
            self.forget_awaited(key.index);
        }
        let node = &mut self.nodes[key.index as usize];
        let entry = node.entry.take()?;
        self.set -= usize::from(entry.member().is_some());
        node.links.next = std::mem::replace(&mut self.free, key.index);
        if self.len + self.aside_len == 0 && self.nodes.len() > KEPT {
            self.nodes = Vec::new();
            self.free = NONE;
        }
        Some(entry)
    }

    fn set_aside(&mut self, key: Key) -> Option<Key> {
        let priority = self.node(key).filter(|node| !node.aside)?.priority as usize;
        self.lists[priority].unlink(&mut self.nodes, |node| &mut node.links, key.index);
        self.aside[priority].push_back(&mut self.nodes, |node| &mut node.links, key.index);
        self.nodes[key.index as usize].aside = true;
        self.len -= 1;
        self.aside_len += 1;
        Some(key)
    }

    fn restore(&mut self, key: Key) -> Option<Arc<Membership>> {
        let priority = self.node(key).filter(|node| node.aside)?.priority as usize;
        self.aside[priority].unlink(&mut self.nodes, |node| &mut node.links, key.index);
        let mut prev = NONE;
        let mut at = self.lists[priority].head;
        while at != NONE && self.nodes[at as usize].entry.as_ref().is_some_and(is_back) {
            (prev, at) = (at, self.nodes[at as usize].links.next);
        }
        self.lists[priority].insert_behind(&mut self.nodes, |node| &mut node.links, prev, key.index);
        self.nodes[key.index as usize].aside = false;
        self.len += 1;
        self.aside_len -= 1;
        self.get(key)?.member().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ask::Ask;
    use crate::pool::error::TaskError;
    use crate::time::Instant;

    impl Entry for u32 {
        fn weight(&self) -> u32 {
            1
        }
        fn priority(&self) -> Priority {
            Priority::Normal
        }
        fn ask(&self) -> Ask {
            Ask::one()
        }
        fn deadline(&self) -> Option<Instant> {
            None
        }
        fn member(&self) -> Option<&Arc<Membership>> {
            None
        }
        fn refuse(self, _: TaskError) -> bool {
            true
        }
    }

    fn new() -> Queue<u32> {
        Queue::new()
    }

    fn taken(queue: &mut Queue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.first().and_then(|key| queue.take(key))).collect()
    }

    #[test]
    fn entries_leave_by_priority_and_arrival() {
        let (mut queue, mut other) = (new(), new());
        for (n, priority) in [Priority::Normal, Priority::High, Priority::Low, Priority::High]
            .into_iter()
            .enumerate()
        {
            queue.push(n as u32, priority);
            other.push(n as u32, priority);
        }
        assert_eq!(queue.last().and_then(|key| queue.get(key)), Some(&2));
        assert_eq!(taken(&mut queue), [1, 3, 0, 2]);
        assert_eq!(other.drain(), [1, 3, 0, 2]);
        assert_eq!((queue.len(), other.len(), other.first()), (0, 0, None));
    }

    /// Given endless tasks of the highest priority, when entries are taken, then the tasks of each other priority get
    /// their turns.
    #[test]
    fn the_oldest_entry_is_taken_after_ageing_preferred_ones() {
        let mut queue = new();
        queue.push(1_000, Priority::Low);
        queue.push(2_000, Priority::Normal);
        (0..100).for_each(|n| _ = queue.push(n, Priority::High));
        let order = taken(&mut queue);
        let at = |entry| order.iter().position(|&n| n == entry).unwrap();
        assert_eq!((at(1_000), at(2_000)), (AGEING as usize, 2 * AGEING as usize + 1));
    }

    #[test]
    fn a_removed_entry_is_gone_and_its_key_finds_no_other() {
        let mut queue = new();
        let first = queue.push(1, Priority::Normal);
        assert_eq!(queue.remove(first), Some(1));
        let second = queue.push(2, Priority::Normal);
        assert_eq!(first.index, second.index, "the place is reused");
        assert!(queue.remove(first).is_none() && queue.get(second) == Some(&2));
        assert_eq!((taken(&mut queue), queue.len()), (vec![2], 0));
    }

    #[test]
    fn awaited_entries_are_listed_until_they_leave() {
        let mut queue = new();
        let first = queue.push(1, Priority::Normal);
        let second = queue.push(2, Priority::Normal);
        assert!(queue.await_it(second) && queue.await_it(second) && queue.await_it(first));
        queue.await_no_more(second);
        assert_eq!((queue.first_awaited(), queue.awaited_len()), (Some(second), 2));
        queue.await_no_more(second);
        assert_eq!(queue.first_awaited(), Some(first));
        queue.remove(first);
        assert_eq!((queue.first_awaited(), queue.awaited_len()), (None, 0));
        assert!(!queue.await_it(first));
    }

    #[test]
    fn a_restored_entry_is_first_again() {
        let mut queue = new();
        let keys = [1, 2, 3, 4].map(|n| queue.push(n, Priority::Normal));
        assert_eq!(
            (queue.set_aside(keys[0]), queue.set_aside(keys[1])),
            (Some(keys[0]), Some(keys[1]))
        );
        assert_eq!((queue.set_aside(keys[0]), queue.len(), queue.aside_len()), (None, 2, 2));
        assert_eq!((queue.first(), queue.last()), (Some(keys[2]), Some(keys[0])));
        queue.restore(keys[0]);
        assert_eq!((queue.first(), queue.len(), queue.aside_len()), (Some(keys[0]), 3, 1));
        assert_eq!(queue.remove(keys[1]), Some(2));
        assert_eq!((taken(&mut queue), queue.aside_len()), (vec![1, 3, 4], 0));
        let keys = [5, 6, 7].map(|n| queue.push(n, Priority::Low));
        keys[..2].iter().for_each(|&key| _ = queue.set_aside(key));
        assert_eq!((queue.drain(), queue.len(), queue.aside_len()), (vec![5, 6, 7], 0, 0));
    }

    #[test]
    fn an_empty_queue_gives_its_memory_back() {
        let mut queue = new();
        let keys: Vec<_> = (0..10_000).map(|n| queue.push(n, Priority::Normal)).collect();
        keys.into_iter().for_each(|key| _ = queue.remove(key));
        assert_eq!((queue.nodes.capacity(), queue.len()), (0, 0));
        let key = queue.push(1, Priority::Low);
        assert_eq!(queue.take(key), Some(1));
    }
}
