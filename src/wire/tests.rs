mod laws;
mod soak;
mod vectors;
