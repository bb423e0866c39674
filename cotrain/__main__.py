from cotrain.cli import main

main()
