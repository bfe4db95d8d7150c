//! A limit that several classes share. Whatever the rule, all of them together never hold more than the limit.

/// What a class may take, beside `total + n <= limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// What the others have not used of their parts stays free for them: whoever is within its part is never refused.
    Kept,
    /// Whatever is free: an unused part is lent, and its owner waits for what comes back.
    Lent,
    /// What the class finds within its part of the limit, whoever holds it: as load rises, classes with small parts are
    /// refused first.
    Level,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    limit: u64,
    /// In millionths of the limit.
    parts: Box<[u64]>,
    held: Box<[u64]>,
    total: u64,
    rule: Rule,
}

const MILLION: u128 = 1_000_000;

impl Shares {
    pub(crate) fn new(limit: u64, parts: Box<[u64]>, rule: Rule) -> Self {
        Self {
            limit,
            held: vec![0; parts.len()].into(),
            parts,
            total: 0,
            rule,
        }
    }

    pub(crate) fn classes(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn held(&self, class: usize) -> u64 {
        self.held[class]
    }

    /// The part of `class`, in whole units, rounded down: so the parts are never more than the limit.
    pub(crate) fn part(&self, class: usize) -> u64 {
        (u128::from(self.limit) * u128::from(self.parts[class]) / MILLION) as u64
    }

    /// True when `n` more fit for `class`.
    pub(crate) fn fits(&self, class: usize, n: u64) -> bool {
        let Some(total) = self.total.checked_add(n).filter(|&total| total <= self.limit) else {
            return false;
        };
        match self.rule {
            Rule::Lent => true,
            Rule::Level => total <= self.part(class),
            Rule::Kept => {
                let others = (0..self.classes()).filter(|&other| other != class);
                let unused = others.map(|other| self.part(other).saturating_sub(self.held[other]));
                total.saturating_add(unused.sum()) <= self.limit
            }
        }
    }

    /// True when `n` of `class` would fit if nothing were held.
    pub(crate) fn could_fit(&self, class: usize, n: u64) -> bool {
        let most = match self.rule {
            Rule::Lent => self.limit,
            Rule::Level => self.part(class),
            Rule::Kept => {
                let others = (0..self.classes()).filter(|&other| other != class);
                let parts: u64 = others.map(|other| self.part(other)).sum();
                self.limit.saturating_sub(parts)
            }
        };
        n <= most
    }

    /// True when `n` for `class` may be taken before one of class `waits`, which has waited longer: it takes nothing that
    /// the other waits for, or matters more.
    pub(crate) fn passes(&self, class: usize, n: u64, waits: usize) -> bool {
        match self.rule {
            Rule::Lent => false,
            Rule::Level => self.parts[class] > self.parts[waits],
            Rule::Kept => class != waits && self.held[class].saturating_add(n) <= self.part(class),
        }
    }

    pub(crate) fn take(&mut self, class: usize, n: u64) -> bool {
        let fits = self.fits(class, n);
        if fits {
            self.held[class] += n;
            self.total += n;
        }
        fits
    }

    pub(crate) fn give_back(&mut self, class: usize, n: u64) {
        let n = n.min(self.held[class]);
        self.held[class] -= n;
        self.total -= n;
    }

    /// Changes the limit. What is held stays held.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }
}
