"""Pa3dFL without one of its parts (paper, table `tb_ablation`). Only these methods may use the internals of another."""
