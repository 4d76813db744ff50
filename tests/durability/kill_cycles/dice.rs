//! Chance that can be repeated: numbers that follow from a seed.

/// SplitMix64: each state gives one number.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(crate) const fn coin(&mut self) -> bool {
        self.next().is_multiple_of(2)
    }
}

/// The seed that the environment names, or a new one.
pub(crate) fn seed() -> u64 {
    if let Ok(seed) = std::env::var("KILL_SEED") {
        return seed.parse().expect("KILL_SEED is a number");
    }
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).unwrap();
    u64::from_le_bytes(bytes) >> 16
}
