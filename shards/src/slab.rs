//! Storage with stable references that notice when what they named is gone.

/// Names an entry of one [`Slab`]. An entry put later in the same place has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ref {
    index: u32,
    generation: u32,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// A vector with holes.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, value: T) -> Ref {
        match self.free.pop() {
            Some(index) => {
                let entry = &mut self.entries[index as usize];
                entry.value = Some(value);
                Ref { index, generation: entry.generation }
            }
            None => {
                let index = u32::try_from(self.entries.len()).expect("fewer than 2^32 entries");
                self.entries.push(Entry { generation: 0, value: Some(value) });
                Ref { index, generation: 0 }
            }
        }
    }

    pub fn get(&self, at: Ref) -> Option<&T> {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        let entry = &self.entries[at.index as usize];
        if entry.generation == at.generation { entry.value.as_ref() } else { None }
    }

    pub fn get_mut(&mut self, at: Ref) -> Option<&mut T> {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        let entry = &mut self.entries[at.index as usize];
        if entry.generation == at.generation { entry.value.as_mut() } else { None }
    }

    pub fn remove(&mut self, at: Ref) -> Option<T> {
        let entry = &mut self.entries[at.index as usize];
        if entry.generation != at.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(at.index);
        Some(value)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| entry.value.as_mut())
    }

    /// References of all entries, in place order.
    pub fn refs(&self) -> impl Iterator<Item = Ref> + '_ {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, e)| e.value.is_some())
            .map(|(i, e)| Ref { index: i as u32, generation: e.generation })
    }

    /// So many steps of a hand go round once.
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// The entry at place `place`, counted round and round: for sweeps by a hand.
    pub fn at_hand(&self, place: usize) -> Option<Ref> {
        let entry = self.entries.get(place % self.entries.len().max(1))?;
        entry.value.as_ref()?;
        Some(Ref { index: (place % self.entries.len()) as u32, generation: entry.generation })
    }
}

impl<T> std::ops::Index<Ref> for Slab<T> {
    type Output = T;
    fn index(&self, at: Ref) -> &T {
        self.get(at).expect("a live reference")
    }
}

impl<T> std::ops::IndexMut<Ref> for Slab<T> {
    fn index_mut(&mut self, at: Ref) -> &mut T {
        self.get_mut(at).expect("a live reference")
    }
}

#[cfg(test)]
thread_local! {
    static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Entries that were looked at on this thread so far, in any slab: for tests that count steps.
#[cfg(test)]
pub(crate) fn looks() -> usize {
    LOOKS.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_does_not_outlive_what_it_named() {
        let mut slab = Slab::default();
        let a = slab.insert("a");
        assert_eq!(slab.remove(a), Some("a"));
        let b = slab.insert("b");
        assert_eq!((slab.get(a), slab.get(b), slab.len()), (None, Some(&"b"), 1));
        assert_eq!(slab.refs().collect::<Vec<_>>(), [b]);
    }
}
