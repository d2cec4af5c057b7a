"""Pa3dFL with one of its parts taken away (paper, table `tb_ablation`): these know its internals, as they must."""
