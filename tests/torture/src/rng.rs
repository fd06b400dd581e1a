//! One small generator: a seed gives the same choices on every machine.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A stream of its own for each (seed, part).
    pub fn new(seed: u64, part: u64) -> Rng {
        let mut rng = Rng(seed ^ part.wrapping_mul(0xA076_1D64_78BD_642F));
        rng.draw();
        rng
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In `low..high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high - low).max(1)
    }

    /// True `n` times of 100.
    pub fn percent(&mut self, n: u64) -> bool {
        self.draw() % 100 < n
    }

    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.draw() as usize % all.len()]
    }

    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for i in (1..all.len()).rev() {
            all.swap(i, self.draw() as usize % (i + 1));
        }
    }
}
