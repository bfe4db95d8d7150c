//! Another limit, or another length, while a fixed window runs.
//!
//! Who has booked was told an instant, and starts then, whatever is changed. So what was booked stays where it is: the window
//! in which the latest of these instants lies keeps what it holds, the windows before it are closed, and debts come behind. A
//! rule of inheritance has its say where nothing is booked.

use super::{Fixed, Meter, Told, UNLIMITED};

/// The last booking that has not begun.
#[derive(Clone, Copy)]
struct Promise {
    /// In which window it lies, counted from the one that runs.
    window: u64,
    at: u64,
    /// How much of that window was taken, up to the booking.
    held: u64,
    /// What was charged behind it: debts.
    debts: u64,
}

impl Fixed {
    /// What the first window that is not closed has left; negative when it holds too much, or something is charged to
    /// later ones.
    pub(crate) fn room(&self) -> i128 {
        i128::from(self.limit) - i128::from(self.count) - i128::from(self.ahead)
    }

    /// In which window an instant to come lies.
    fn window_of(&self, at: u64) -> u64 {
        at.checked_sub(self.end).map_or(0, |since| 1 + since / self.length)
    }

    fn promise(&self) -> Option<Promise> {
        if seeded!("fixed_forgets_bookings") {
            return None;
        }
        let kept = Some(self.kept).filter(|kept| kept.at > self.now);
        let kept = kept.map(|kept| (self.window_of(kept.at), kept.at, kept.held));
        // Since the last change they start where windows do. What has been cancelled may have been the last.
        let booked = Some(self.booked).filter(|booked| booked.at > self.now);
        let booked = booked.map(|booked| (self.window_of(booked.at), booked.held).min(self.tail()));
        let booked = booked.filter(|(window, _)| *window > 0);
        let booked = booked.map(|(window, held)| (window, self.start_of(window), held));
        let (window, at, held) = match (kept, booked) {
            (Some(kept), Some(booked)) if kept.0 == booked.0 => (kept.0, kept.1.max(booked.1), kept.2.max(booked.2)),
            (kept, booked) => kept.max(booked)?,
        };
        let before = match window.checked_sub(self.closed.saturating_add(1)) {
            None => 0,
            Some(full) => full.saturating_mul(self.limit).saturating_add(self.count),
        };
        let debts = match window {
            0 => self.ahead,
            _ => (self.count.saturating_add(self.ahead)).saturating_sub(before.saturating_add(held)),
        };
        Some(Promise {
            window,
            at,
            held,
            debts,
        })
    }

    /// What any window holds at most that was booked.
    fn most_held(&self) -> u64 {
        let closed = if self.closed > 0 { self.closed_holds } else { 0 };
        closed.max(self.limit).max(self.count)
    }

    /// Closes the windows before the last that was booked, which lies so many after the one that runs. Debts come behind.
    fn keep(&mut self, windows: u64, told: Told, debts: u64) {
        self.closed = windows;
        (self.kept, self.booked) = (told, Told::NOTHING);
        (self.count, self.ahead) = (told.held, 0);
        self.charge(debts);
    }

    /// Changes the limit, and leaves so much room where nothing is booked. Without a limit nothing is counted.
    pub(crate) fn set_limit(&mut self, limit: u64, room: i128) {
        if limit == UNLIMITED {
            self.limit = limit;
            return self.clear();
        }
        let held = u128::from(self.count) + u128::from(self.ahead);
        let mut holds = u64::try_from((i128::from(limit) - room).max(0)).unwrap_or(u64::MAX);
        let promise = self.promise();
        if self.ahead > 0 || u128::from(holds) < held || promise.is_some() {
            // Forgiven, or dealt out anew over the windows to come.
            self.generation += 1;
        }
        if let Some(Promise {
            window,
            at,
            held,
            debts,
        }) = promise
        {
            if window > 0 {
                self.closed_holds = self.most_held();
                self.limit = limit;
                return self.keep(window, Told { at, held }, if holds == 0 { 0 } else { debts });
            }
            holds = holds.max(held);
        }
        if self.ahead == 0 {
            // An admission that is more than the new limit stays in its own window.
            self.count = holds;
        } else {
            self.count = holds.min(limit);
            self.ahead = holds - self.count;
        }
        self.limit = limit;
    }

    /// Changes the length of the window that runs, which keeps its start, and of those to come.
    pub(crate) fn set_length(&mut self, length: u64) {
        let (before, promise) = (self.length, self.promise());
        let exact = self.closed == 0 && self.kept.at <= self.now;
        // What has come into the window that runs by a change, and has not begun.
        let pending = match promise {
            Some(promise) if promise.window > 0 && !exact => {
                if self.closed > 0 {
                    self.most_held()
                } else {
                    self.kept.held
                }
            }
            _ => 0,
        };
        // It may have started before the clock did.
        let old_start = i128::from(self.end) - i128::from(before);
        let windows = |from: i128, to: i128, length: u64| (to - from).max(0) / i128::from(length);
        let passed = windows(old_start, self.now.into(), length);
        let start = old_start + passed * i128::from(length);
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        self.length = length;
        self.end = u64::try_from(start + i128::from(length)).unwrap_or(u64::MAX);
        if self.ahead > 0 || promise.is_some() {
            self.generation += 1;
        }
        let Some(Promise {
            window,
            at,
            held,
            debts,
        }) = promise
        else {
            // Where a shorter window has begun since, what was taken in it counts in it; nobody knows how much that is.
            match i128::from(self.latest) >= start {
                true => self.number = self.number.wrapping_add(passed),
                false => self.go_on(passed),
            }
            return;
        };
        self.number = self.number.wrapping_add(passed);
        let most = self.most_held();
        let here = if self.closed == 0 { self.count } else { most };
        let ahead = windows(start, at.into(), length);
        let begins = start + ahead * i128::from(length);
        // Windows that were booked before the last, of which something starts in the same one now.
        let first = windows(old_start, begins, before);
        let at_its_start = old_start + first * i128::from(before) == begins;
        let first = u64::try_from(first)
            .unwrap_or(u64::MAX)
            .saturating_add(u64::from(exact && !at_its_start));
        let joined = window.saturating_sub(first.max(1));
        let pending = if first == 0 { pending } else { 0 };
        let held = held.saturating_add(joined.saturating_mul(most)).saturating_add(pending);
        self.closed_holds = most.saturating_mul(length / before + 1).saturating_add(here);
        let told = Told { at, held };
        match u64::try_from(ahead).unwrap_or(u64::MAX) {
            0 if window == 0 => self.kept = told,
            0 => {
                self.keep(0, told, 0);
                self.count = self.count.saturating_add(here);
                self.charge(debts);
            }
            ahead => self.keep(ahead, told, debts),
        }
    }
}
