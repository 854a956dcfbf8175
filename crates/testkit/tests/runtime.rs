//! The suite for the runtime on the store in memory.

posthaste_testkit::runtime_suite!(posthaste_testkit::MemoryFixture);
