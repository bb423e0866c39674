from cotrain.cli.main import main

main()
